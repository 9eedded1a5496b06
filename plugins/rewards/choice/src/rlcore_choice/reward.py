r"""The reward `multiple_choice`: which option a response settles on.

An answer is, the strongest sign first: the last box, `\boxed{B}`; the last statement, such as "the answer is
(B)", "so B", "B is correct" or a last line that is a letter; the last option whose text the response ends
with; and a single line such as "B) Paris". A statement that is denied, asked or supposed, and one that names
several options, is none.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from rlcore import Prompt, Sample, Score, answer_of
from rlcore_choice.clauses import settled
from rlcore_choice.config import MultipleChoiceConfig
from rlcore_toolkit import complaints_of

CHOICES = "choices"
"""In a prompt's metadata: the texts of the options, in order; or ARC's table of `text` and `label`."""

LOOKED_AT = 10_000
"""Characters at the end of a response in which its answer is looked for."""

_BOX = re.compile(r"\\boxed ?\{")
_BOX_LENGTH = 200
_COMMANDS = re.compile(r"\\(?:text\w{0,9}|math\w{0,9}|bf|rm|left|right|quad|,|;|!|\(|\)|\[|\])")
_MARKUP = str.maketrans("", "", '*_`$"“”~')
_BLANKS = re.compile(r"\s+")
_BETWEEN = re.compile(r",|/|&|\band\b|\bor\b")
_LETTER = re.compile(r"[(\[{]{0,3}([A-Za-z])(?:[)\]}. ]{0,3}$|[)\]}]|[.:] ?[^\W\d]{2})")
_LINE = re.compile(r"(?:^|(?<=[ \n]))\(?([A-Z])[).:] ?(?=[^\W\d_]{2})")
_DOUBT = re.compile(r"\b(?:not|no|nor|or|neither|never|wrong|and|than|\w{1,6}n['’]t)\b|\?|\bruled? ")  # noqa: RUF001


class MultipleChoice:
    """1.0 where the response settles on the label's option, else 0.0.

    A label is a letter, the number of an option from 0, or the text of one of the metadata's `choices`. Part:
    `answered`, 1.0 where the response settles on any option.
    """

    def __init__(self, config: MultipleChoiceConfig) -> None:
        self._config = config

    @classmethod
    def prompt_complaints(cls, config: MultipleChoiceConfig, prompts: Sequence[Prompt]) -> Iterable[str]:
        """Labels that are no option."""
        reward = cls(config)
        return complaints_of(lambda prompt: _right(prompt, reward._texts(prompt)), prompts)

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score for each sample. `ValueError` for a label that is no option."""
        texts = self._texts(samples[0].prompt)
        right = _right(samples[0].prompt, texts)
        letters = [self._settled(answer_of(sample), texts) for sample in samples]
        return [Score(value=float(x == right), parts={"answered": float(x is not None)}) for x in letters]

    def _texts(self, prompt: Prompt) -> Sequence[str]:
        choices = prompt.metadata.get(CHOICES)
        if isinstance(choices, Mapping):
            choices = choices.get("text")
        if choices is None:
            return [""] * self._config.choices
        if not isinstance(choices, list | tuple) or not 2 <= len(choices) <= 26:
            raise ValueError(f"the metadata {CHOICES} {choices!r} is no list of 2 to 26 options")
        return [str(text) for text in choices]

    def _settled(self, text: str, texts: Sequence[str]) -> int | None:
        """The number of the option, from 0."""
        tail = text[-LOOKED_AT:]
        contents = (_content(tail[box.end() : box.end() + _BOX_LENGTH]) for box in _BOX.finditer(tail))
        boxes = [named for content in contents if (named := _boxed(content, texts))]
        if boxes:
            return boxes[-1][0] if len(boxes[-1]) == 1 else None
        plain = _BLANKS.sub(_blank, _COMMANDS.sub("", tail).translate(_MARKUP)).strip()
        found = settled(plain, len(texts), marked=self._config.marked)
        if found is not None or self._config.marked:
            return found
        lines = _LINE.findall(plain)
        if len(lines) > 1:
            return None  # a list of the options
        ended = _ended(plain, texts)
        if ended is not None or not lines:
            return ended
        around = {plain.partition("\n")[0], plain.rpartition("\n")[2]}
        line = next((line for line in around if _LINE.match(line)), None)
        place = _place(lines[0]) if line is not None and not _DOUBT.search(line) else len(texts)
        return place if place < len(texts) else None


def _blank(run: re.Match[str]) -> str:
    return "\n" if "\n" in run.group() else " "


def _content(box: str) -> str:
    """The text up to the brace that closes the box."""
    depth = 1
    for end, character in enumerate(box):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return _COMMANDS.sub("", box[:end]).translate(_MARKUP).strip(" {}")
    return ""


def _boxed(content: str, texts: Sequence[str]) -> list[int]:
    """The options that a box names: by the text of one, or by letters."""
    folded = content.casefold()
    same = [place for place, option in enumerate(texts) if option and option.casefold() == folded]
    if same:
        return same[:1]
    letters = [_LETTER.match(part.strip(" {}")) for part in _BETWEEN.split(content)]
    return [place for letter in letters if letter and (place := _place(letter.group(1))) < len(texts)]


def _ended(plain: str, texts: Sequence[str]) -> int | None:
    """The longest option whose text the response ends with, as whole words."""
    tail = plain.rstrip(" \n\t.!*").casefold()
    ended = [place for place, option in enumerate(texts) if option and _ends(tail, option.casefold())]
    if not ended:
        return None
    best = max(ended, key=lambda place: len(texts[place]))
    before = re.split(r"[.;\n,]", tail[: len(tail) - len(texts[best])][-200:])[-1]
    return None if _DOUBT.search(before) else best


def _ends(tail: str, option: str) -> bool:
    before = tail[: len(tail) - len(option)][-1:]
    return tail.endswith(option) and not (before.isalnum() or (before and before in ".,-−/'"))  # noqa: RUF001


def _place(letter: str) -> int:
    return ord(letter.upper()) - ord("A")


def _right(prompt: Prompt, texts: Sequence[str]) -> int:
    label, choices = prompt.label, prompt.metadata.get(CHOICES)
    if isinstance(choices, Mapping) and label in (names := list(choices.get("label", ()))):
        return names.index(label)
    if isinstance(label, str) and label and label in texts:
        return texts.index(label)
    if isinstance(label, str) and re.fullmatch(r"\(?[A-Za-z]\)?\.?", label):
        place = _place(label.strip("()."))
    elif isinstance(label, int) and not isinstance(label, bool):
        place = label
    else:
        place = -1
    if not 0 <= place < len(texts):
        raise ValueError(f"the label {label!r} is none of the {len(texts)} options")
    return place
