r"""The reward `multiple_choice`: which option a response settles on.

An answer is, the strongest sign first: the last `\boxed{B}`; the last "answer is (B)", "answer: B" or
"<answer>B</answer>"; the last option whose text the response ends with; and the last line, or the last word,
that is a letter alone: `B`, `(B)`, `B.`, `**B**`.
"""

import re
from collections.abc import Sequence

from rlcore import Json, Sample, Score
from rlcore_choice.config import MultipleChoiceConfig

CHOICES = "choices"
"""In a prompt's metadata: the texts of the options, in order."""

_MARKS = r"[\s*_`\"'(\[{]*"
_END = r"(?![A-Za-z0-9'])"
_BOXED = re.compile(rf"\\boxed\s*\{{\s*(?:\\(?:text|mathrm|textbf)\s*\{{)?{_MARKS}([A-Za-z]){_END}")
_SAID = re.compile(
    rf"(?:answer|choice|option)\s*(?:>|(?:is|are|would be|should be)?\s*:?)\s*"
    rf"(?:option\s+|choice\s+)?{_MARKS}([A-Z]){_END}",
    re.IGNORECASE,
)
_LETTER = re.compile(rf"(?<![A-Za-z0-9'])[(\[*_]*([A-Z])[)\].*_]*{_END}\s*[.!]?\s*(?:</\w+>\s*)?$")


class MultipleChoice:
    """1.0 where the response settles on the label's option, else 0.0.

    A label is a letter, the number of an option from 0, or the text of one of the metadata's `choices`. Part:
    `answered`, 1.0 where the response settles on any option.
    """

    def __init__(self, config: MultipleChoiceConfig) -> None:
        self._config = config

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score for each sample. `ValueError` for a label that is no option."""
        texts = self._texts(samples[0].prompt.metadata.get(CHOICES))
        right = _right(samples[0].prompt.label, texts)
        letters = [self._settled(sample.text, texts) for sample in samples]
        return [Score(value=float(x == right), parts={"answered": float(x is not None)}) for x in letters]

    def _texts(self, choices: Json) -> Sequence[str]:
        if choices is None:
            return [""] * self._config.choices
        if not isinstance(choices, list | tuple) or not 2 <= len(choices) <= 26:
            raise ValueError(f"the metadata {CHOICES} {choices!r} is no list of 2 to 26 options")
        return [str(text) for text in choices]

    def _settled(self, text: str, texts: Sequence[str]) -> int | None:
        """The number of the option, from 0."""
        for pattern in (_BOXED, _SAID):
            marked = [place for letter in pattern.findall(text) if (place := _place(letter)) < len(texts)]
            if marked:
                return marked[-1]
        if self._config.marked:
            return None
        tail = text.rstrip(" \n\t.!*").casefold()
        ended = [place for place, option in enumerate(texts) if option and tail.endswith(option.casefold())]
        if ended:
            return max(ended, key=lambda place: len(texts[place]))  # "10" ends with "0" as well
        alone = _LETTER.search(text)
        place = _place(alone.group(1)) if alone else len(texts)
        return place if place < len(texts) else None


def _place(letter: str) -> int:
    return ord(letter.upper()) - ord("A")


def _right(label: Json, texts: Sequence[str]) -> int:
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
