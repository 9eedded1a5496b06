"""The 25 instructions of IFEval, from their descriptions in https://arxiv.org/abs/2311.07911 (table 1).

Each check takes the response and the instruction's arguments, by the names that the published data give them.
Words and sentences are counted by regular expressions: where the paper's code uses a tokenizer that has to be
downloaded, counts may differ by abbreviations and the like.
"""

import json
import re
from collections.abc import Callable, Mapping

from rlcore_ifeval.language import language_of

_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
_SENTENCE_END = re.compile(
    r"(?:(?<!\b[A-Z])(?<!\bMr)(?<!\bDr)(?<!\bMrs)[.!?]+[\"')\]]*(?=\s|$))|[\u3002\uff01\uff1f]+"
)
_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def _compare(count: int, relation: str, bound: int) -> bool:
    if relation == "at least":
        return count >= bound
    if relation == "less than":
        return count < bound
    raise ValueError(f"the relation {relation!r} is neither 'at least' nor 'less than'")


def _has(word: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def keywords_exist(text: str, keywords: list[str]) -> bool:
    """Each keyword occurs, whatever its case."""
    return all(word.casefold() in text.casefold() for word in keywords)


def keyword_frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    """A keyword occurs so often."""
    return _compare(len(re.findall(re.escape(keyword), text, re.IGNORECASE)), relation, frequency)


def forbidden_words(text: str, forbidden_words: list[str]) -> bool:
    """None of the words occurs."""
    return not any(_has(word, text) for word in forbidden_words)


def letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    """A letter occurs so often, whatever its case."""
    return _compare(text.lower().count(letter.lower()), let_relation, let_frequency)


def response_language(text: str, language: str) -> bool:
    """The response is in the language of this ISO 639-1 code."""
    return language_of(text, language) == language


def sentences(text: str) -> int:
    """How many sentences a text has; what has no end mark counts as one."""
    pieces = _SENTENCE_END.split(text)
    return sum(bool(_WORD.search(piece)) for piece in pieces)


def number_sentences(text: str, num_sentences: int, relation: str) -> bool:
    """So many sentences."""
    return _compare(sentences(text), relation, num_sentences)


def number_words(text: str, num_words: int, relation: str) -> bool:
    """So many words."""
    return _compare(len(_WORD.findall(text)), relation, num_words)


def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    """So many paragraphs, separated by `***`; none but the first and the last piece may be empty."""
    pieces = [piece.strip() for piece in re.split(r"\s?\*\*\*\s?", text)]
    return all(pieces[1:-1]) and sum(map(bool, pieces)) == num_paragraphs


def nth_paragraph_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """So many paragraphs, separated by two line breaks, of which the nth begins with a word."""
    paragraphs = [piece.strip() for piece in re.split(r"\n\n", text) if piece.strip()]
    if len(paragraphs) != num_paragraphs or nth_paragraph > len(paragraphs):
        return False
    first = _WORD.search(paragraphs[nth_paragraph - 1].split()[0])
    return first is not None and first.group().casefold() == first_word.casefold()


def number_placeholders(text: str, num_placeholders: int) -> bool:
    """At least so many placeholders such as `[address]`."""
    return len(re.findall(r"\[.*?\]", text)) >= num_placeholders


def postscript(text: str, postscript_marker: str) -> bool:
    """A postscript, which begins with `P.S.` or `P.P.S`; spaces between its letters don't matter."""
    letters = [character for character in postscript_marker if not character.isspace() and character != "."]
    if postscript_marker not in ("P.S.", "P.P.S"):
        return postscript_marker.casefold() in text.casefold()
    return re.search(r"(?<!\w)" + r"\.?\s?".join(letters) + r"(?:\.|:|\s)", text, re.IGNORECASE) is not None


def number_bullet_lists(text: str, num_bullets: int) -> bool:
    """Exactly so many bullet points, lines that begin with `* ` or `- `."""
    return len(re.findall(r"^\s*(?:\*(?!\*)|-(?!-))\s*\S", text, re.MULTILINE)) == num_bullets


def constrained_response(text: str) -> bool:
    """One of the three answers."""
    return any(answer in text for answer in _ANSWERS)


def number_highlighted_sections(text: str, num_highlights: int) -> bool:
    """At least so many sections `*highlighted*` or `**highlighted**`."""
    double = re.findall(r"\*\*[^\n*]*[^\s*][^\n*]*\*\*", text)
    rest = re.sub(r"\*\*[^\n*]*\*\*", "", text)
    return len(double) + len(re.findall(r"\*[^\n*]*[^\s*][^\n*]*\*", rest)) >= num_highlights


def multiple_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    """At least so many sections, each of which begins with `<splitter> 1` and so on."""
    return len(re.findall(rf"\s?{re.escape(section_spliter)}\s?\d+\s?", text)) >= num_sections


def json_format(text: str) -> bool:
    """The whole response is JSON, in Markdown ticks or not."""
    bare = re.sub(r"^```(?:json|JSON)?\s*|\s*```$", "", text.strip())
    try:
        json.loads(bare)
    except (ValueError, RecursionError):
        return False
    return True


def title(text: str) -> bool:
    """A title in double angular brackets, `<<poem of joy>>`."""
    return any(piece.strip("<> \t") for piece in re.findall(r"<<[^\n]+>>", text))


def two_responses(text: str) -> bool:
    """Two different responses, separated by six asterisks."""
    pieces = [piece.strip() for piece in text.split("******")]
    responses = [piece for piece in pieces if piece]
    return all(pieces[1:-1]) and len(responses) == 2 and responses[0] != responses[1]


def repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    """The response begins with the prompt."""
    return text.strip().casefold().startswith(prompt_to_repeat.strip().casefold())


def end_checker(text: str, end_phrase: str) -> bool:
    """The response ends with a phrase; nothing follows."""
    return text.strip().strip('"').casefold().endswith(end_phrase.strip().casefold())


def quotation(text: str) -> bool:
    """The whole response is in double quotation marks."""
    bare = text.strip()
    return len(bare) > 1 and bare[0] == bare[-1] == '"'


def capital_word_frequency(text: str, capital_frequency: int, capital_relation: str) -> bool:
    """So many words all in capital letters."""
    return _compare(sum(word.isupper() for word in _WORD.findall(text)), capital_relation, capital_frequency)


def english_capital(text: str) -> bool:
    """English, in capital letters only."""
    return text.isupper() and language_of(text, "en") == "en"


def english_lowercase(text: str) -> bool:
    """English, in small letters only."""
    return text.islower() and language_of(text, "en") == "en"


def no_comma(text: str) -> bool:
    """No comma at all."""
    return "," not in text


CHECKS: Mapping[str, Callable[..., bool]] = {
    "keywords:existence": keywords_exist,
    "keywords:frequency": keyword_frequency,
    "keywords:forbidden_words": forbidden_words,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:number_words": number_words,
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:number_highlighted_sections": number_highlighted_sections,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": end_checker,
    "startend:quotation": quotation,
    "change_case:capital_word_frequency": capital_word_frequency,
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
    "punctuation:no_comma": no_comma,
}
"""Instruction → (response, its arguments) → whether it is followed."""
