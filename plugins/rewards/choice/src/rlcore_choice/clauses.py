"""Which option the clauses of a text settle on, in time that is linear in the text."""

# ruff: noqa: RUF001

import re
from collections.abc import Iterator
from dataclasses import dataclass, field


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TOKEN = re.compile(r"[A-Za-zÀ-ɏЀ-ӿ0-9]+(?:['’][A-Za-z]+)*|\n|[^\s\w]|[^\W\d]|_")
_ANSWER = _words("answer option choice antwort respuesta réponse resposta ответ 案")
_CUES = _ANSWER - {"option", "choice"} | _words(
    "solution correct right best choose pick select chose picked selected choosing picking selecting "
    "go going opt settle final conclude conclusion correcta 选 #"
)
_VERBS = _words("is are must seems would should looks fits has it")
_FILLERS = _words(
    "the it it's is be must should would has have to so thus hence therefore i i'd i'll we we'd get "
    "think believe say guess that that's means my our this leaves only option choice letter answer = "
    "> - : ( [ { < ' ‘ → and or both go with pick choose select then now clearly probably definitely "
    "must've likely most final"
)
_BEFORE = _words(
    "is be it's that's option choice letter answer choose pick select chose picked selected choosing "
    "picking selecting with on for say think believe guess therefore thus so hence clearly indeed "
    "probably likely definitely simply obviously then actually now both leaves only means that get "
    "opt est es ist é as mark and or"
)
_AFTER = _VERBS | _words("for with given due by based from and or among in over")
_CONCLUSIONS = _words("so thus therefore hence")
_SPLITS = _CONCLUSIONS | _words("but because since as while whereas although though which")
_DENIED = _words("not rather instead")
_NO_STATEMENT = _DENIED | _words(
    "no never wrong incorrect neither nor cannot except eliminate eliminated eliminates exclude "
    "excluded excludes rule ruled rules false mistake mistaken unlikely impossible doubt reject "
    "rejected if whether suppose supposing assume assuming unless why either thought tempting could "
    "might may maybe perhaps says said claims claimed people students trap distractor previous "
    "earlier example format 不 非 错 nicht nein pas"
)
_ENDS = frozenset(".;!?\n。；！？")
_COMMAS = frozenset(",，、")
_OPENING = frozenset("([{<'‘（")
_CLOSING = frozenset(")]}>'’）")
_GLUED = frozenset("+#=^%&@\\|")


@dataclass(slots=True)
class _Clause:
    tokens: list[str] = field(default_factory=list)
    letters: list[tuple[int, int]] = field(default_factory=list)
    """The place among `tokens` and the number of each option that the clause names."""
    concluded: bool = False
    line_start: bool = True
    only_letters: bool = True
    end: str = "\n"

    def add(self, token: str) -> None:
        """Append a token."""
        self.tokens.append(token)
        self.only_letters = self.only_letters and (len(token) == 1 or token in ("and", "or"))

    def bare(self) -> bool:
        """Whether it is a list of options, and nothing else."""
        return bool(self.letters) and self.only_letters


def settled(text: str, options: int, *, marked: bool) -> int | None:
    """The option, counted from 0, of the last statement; None: no statement, or the last one names several.

    `marked`: only a statement with a word such as "answer" counts.
    """
    found: int | None = None
    clauses = list(_clauses(text, options))
    for place, clause in enumerate(clauses):
        words = [token.lower() for token in clause.tokens]
        denied = any(word in _NO_STATEMENT or word.endswith(("n't", "n’t")) for word in words)
        if denied and not clause.letters and words[0] in ("no", "that", "this", "it", "that's", "it's"):
            found = None  # "that is wrong", "no"
        if denied or clause.end in "?？" or not clause.letters:
            continue
        numbers = {number for _, number in clause.letters}
        listed = bool(place) and clauses[place - 1].end in _COMMAS and clauses[place - 1].letters
        if listed and clause.bare() and not clause.concluded:
            found = None  # "the answer is A, B"
        elif _states(clause, words, last=place == len(clauses) - 1, marked=marked):
            found = numbers.pop() if len(numbers) == 1 else None
    return found


def _states(clause: _Clause, words: list[str], *, last: bool, marked: bool) -> bool:
    first, final = clause.letters[0][0], clause.letters[-1][0]
    before, after = words[:first], [word for word in words[final + 1 :] if word not in _CLOSING]
    if marked and _ANSWER.isdisjoint(before):
        return False
    if not _CUES.isdisjoint(before):
        others = words[0] in ("most", "many", "some") and words[1] != "likely"
        return not others and "would" not in after
    if not _FILLERS.issuperset(before):
        return False
    if after:
        return after[0] in _VERBS and not _CUES.isdisjoint(after)
    leading = not _BEFORE.isdisjoint(before)
    whole_line = clause.line_start and clause.end == "\n"
    return clause.concluded or leading or last or whole_line


def _clauses(text: str, options: int) -> Iterator[_Clause]:
    matches = list(_TOKEN.finditer(text))
    clause = _Clause()
    for place, match in enumerate(matches):
        token = match.group()
        word = token.lower()
        split = word in _SPLITS or (word in _DENIED and clause.letters)
        if token in _ENDS or token in _COMMAS or split:
            if token == "\n" and clause.tokens and _goes_on(clause.tokens[-1]):
                continue
            if token in _COMMAS and clause.bare():
                continue
            if token == "." and _joined(matches, place) and _within_word(clause, matches[place + 1].group()):
                clause.add(token)
                continue
            if clause.tokens:
                clause.end = token
                yield clause
                line_start = token == "\n"
            else:
                line_start = clause.line_start or token == "\n"
            keeps = word in _CONCLUSIONS or (clause.concluded and not clause.tokens)
            clause = _Clause(concluded=keeps, line_start=line_start)
            if word in _DENIED:
                clause.add(token)
            continue
        number = ord(word) - ord("a") if len(token) == 1 and token.isascii() and token.isalpha() else options
        if number < options and _names(clause, token, matches, place):
            clause.letters.append((len(clause.tokens), number))
        clause.add(token)
    if clause.tokens:
        yield clause


def _goes_on(token: str) -> bool:
    return token in (":", "：", "=", ">") or token.lower() in ("is", "answer", "be")


def _names(clause: _Clause, letter: str, matches: list[re.Match[str]], place: int) -> bool:
    """Whether a lone letter names an option, by the tokens beside it."""
    before = clause.tokens[-1] if clause.tokens else ""
    opened = before in _OPENING and before != ""
    here = matches[place]
    following = matches[place + 1] if place + 1 < len(matches) else None
    after = "\n" if following is None else following.group()
    close = following is not None and following.start() == here.end()
    glued = matches[place - 1].group() if place and matches[place - 1].end() == here.start() else " "
    if glued in "+-−/^=.\\@#&" and not (glued == "/" and clause.letters):
        return False
    if before in ("and", "or", "And", "Or") and not clause.letters and len(clause.tokens) > 1:
        return False
    if before.isalnum() and before.isascii() and before.lower() not in _BEFORE:
        return False
    if close and (after in _GLUED or (after in "-−'’" and _joined(matches, place + 1))):
        return False
    if close and after == "." and _joined(matches, place + 1) and len(matches[place + 2].group()) < 3:
        return False
    if opened and after in _CLOSING:
        return True
    if after in _CLOSING or after in _ENDS or after in _COMMAS or not after.isalnum():
        return letter.isupper() or bool(clause.tokens) or after in _CLOSING or len(matches) <= 3
    word = after.lower()
    if letter.islower():
        return before.lower() in ("option", "choice", "letter") and word in _VERBS | _SPLITS
    if word in _AFTER or word in _SPLITS or word in _DENIED:
        return True
    return letter not in "AI" and after[0].isupper()


def _within_word(clause: _Clause, following: str) -> bool:
    """Whether a full stop with nothing behind it is a part of a number or a name, such as 2.5 or x.y."""
    return not clause.tokens or len(clause.tokens[-1]) > 1 or following[0].isdigit()


def _joined(matches: list[re.Match[str]], place: int) -> bool:
    """Whether a word follows the mark at `place` without a space."""
    if place + 1 >= len(matches):
        return False
    return matches[place + 1].start() == matches[place].end() and matches[place + 1].group()[0].isalnum()
