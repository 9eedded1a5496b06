"""The rewards: each maps the samples of one group to one score a sample.

Those with a label compare what stands behind the thoughts of the response, and of the label if it has any.

A label is a string, another JSON scalar (compared in its JSON spelling) or a list of these, of which the one
that gives the highest score counts.
"""

import random
import re
import string
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence

from rlcore import (
    GenerationStatus,
    Prompt,
    RewardConfig,
    Sample,
    Score,
    accepted_answers,
    answer_of,
    answer_text,
)
from rlcore_text.config import (
    ExactMatchConfig,
    F1Config,
    FormatConfig,
    LengthRankConfig,
    RandomConfig,
    TokenMatchConfig,
)
from rlcore_toolkit import complaints_of

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class _LabelReward(ABC):
    """Scores a sample by the accepted answer that suits it best."""

    @classmethod
    def prompt_complaints(cls, config: RewardConfig, prompts: Sequence[Prompt]) -> Iterable[str]:
        """Labels that are neither text nor number, and no list of these."""
        return complaints_of(lambda prompt: accepted_answers(prompt.label), prompts)

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score for each sample, in order."""
        return [self._best(sample) for sample in samples]

    def _best(self, sample: Sample) -> Score:
        ended = sample.status is GenerationStatus.COMPLETED
        accepted = map(answer_text, accepted_answers(sample.prompt.label))
        scores = [self._compare(answer_of(sample), answer, ended) for answer in accepted]
        return max(scores, key=lambda score: score.value)

    @abstractmethod
    def _compare(self, text: str, answer: str, ended: bool) -> Score:
        """`ended`: the response ended by itself, rather than at the limit of its length."""


class ExactMatch(_LabelReward):
    """1.0 where a response that ended by itself is an accepted answer, else 0.0."""

    def __init__(self, config: ExactMatchConfig) -> None:
        self._config = config

    def _compare(self, text: str, answer: str, ended: bool) -> Score:
        return Score(value=float(ended and self._plain(text) == self._plain(answer)))

    def _plain(self, text: str) -> str:
        text = text.strip() if self._config.strip else text
        return text.casefold() if self._config.casefold else text


class TokenMatch(_LabelReward):
    """The share of positions that are right: each token of the answer, and the end behind the last one.

    Dense, so that a policy with random weights has something to climb. Parts: `hits`, the share without the
    end; `ended`, 1.0 where the response stops exactly where the answer does.
    """

    def __init__(self, config: TokenMatchConfig) -> None:
        self._config = config

    def _compare(self, text: str, answer: str, ended: bool) -> Score:
        response, target = self._tokens(text), self._tokens(answer)
        hits = sum(a == b for a, b in zip(response, target, strict=False))
        ends = ended and len(response) == len(target)
        return Score(
            value=(hits + ends) / (len(target) + 1),
            parts={"hits": hits / max(len(target), 1), "ended": float(ends)},
        )

    def _tokens(self, text: str) -> Sequence[str]:
        text = text.casefold() if self._config.casefold else text
        return text if self._config.unit == "character" else text.split()


class F1(_LabelReward):
    """Harmonic mean of the precision and the recall of words, as bags.

    Source: SQuAD, https://arxiv.org/abs/1606.05250, section 6.1. Two empty texts agree. Parts: `precision`
    and `recall`.
    """

    def __init__(self, config: F1Config) -> None:
        self._config = config

    def _compare(self, text: str, answer: str, ended: bool) -> Score:
        response, target = self._words(text), self._words(answer)
        if not response or not target:
            same = float(response == target)
            return Score(value=same, parts={"precision": same, "recall": same})
        shared = (Counter(response) & Counter(target)).total()
        precision, recall = shared / len(response), shared / len(target)
        value = 2 * precision * recall / (precision + recall) if shared else 0.0
        return Score(value=value, parts={"precision": precision, "recall": recall})

    def _words(self, text: str) -> list[str]:
        if self._config.normalize:
            text = _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION))
        return text.split()


class Format:
    """1.0 where the whole response matches the pattern, else 0.0; the label plays no part.

    A pattern that backtracks without end is stopped by the time limit of the reward pool.
    """

    def __init__(self, config: FormatConfig) -> None:
        self._pattern = re.compile(config.pattern, re.DOTALL if config.dotall else 0)

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score for each sample, in order."""
        return [Score(value=float(self._pattern.fullmatch(sample.text) is not None)) for sample in samples]


class LengthRank:
    """The share of its siblings that a response is shorter than, in tokens; an equal one counts half.

    A response without siblings (in an evaluation) has 0.5. The label plays no part.
    """

    def __init__(self, config: LengthRankConfig) -> None:
        pass

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score for each sample, which depends on the others."""
        lengths = [len(sample.response_ids) for sample in samples]
        return [Score(value=_rank(length, lengths)) for length in lengths]


def _rank(length: int, lengths: Sequence[int]) -> float:
    siblings = len(lengths) - 1
    longer = sum(other > length for other in lengths)
    equal = lengths.count(length) - 1
    return (longer + equal / 2) / siblings if siblings else 0.5


class Random:
    """1.0 or 0.0 by chance, for controls: what a run learns from it comes from anything but the reward.

    The chance follows from the sample's seed, so that a run repeats.
    """

    def __init__(self, config: RandomConfig) -> None:
        self._chance = config.chance

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score for each sample."""
        return [Score(value=float(random.Random(sample.seed).random() < self._chance)) for sample in samples]
