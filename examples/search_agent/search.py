"""A search agent: the policy writes a query, reads what the search finds, and answers.

The corpus is made here: a name of three letters and a number in each document. The question gives the name,
and only the corpus has the number. The policy learns to ask for the right document, and to copy the number
out of it.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from pydantic import Field

from rlcore import (
    Component,
    Config,
    GenerationContext,
    GenerationStatus,
    Prompt,
    Prompts,
    Sample,
    Score,
    Source,
    hookimpl,
)
from rlcore_toolkit import Trajectory

LETTERS = "acdeoprstvy"
"""Those that the tokenizer of the tiny preset knows."""
QUERY_TOKENS = 4
ANSWER_TOKENS = 4


class Search:
    """Okapi BM25 over the characters of the names: a query with a slip still finds its neighbors."""

    K1, B = 1.2, 0.75

    def __init__(self, documents: Sequence[str]) -> None:
        self._documents = documents
        self._terms = [Counter(_terms(document)) for document in documents]
        self._mean = sum(map(Counter.total, self._terms)) / len(documents)
        self._found_in = Counter(term for terms in self._terms for term in terms)

    def best(self, query: str) -> str:
        """The document with the highest score; empty where no term of the query is known."""
        scores = [self._score(_terms(query), terms) for terms in self._terms]
        highest = max(scores)
        return self._documents[scores.index(highest)] if highest > 0 else ""

    def _score(self, query: Sequence[str], terms: Counter[str]) -> float:
        length = self.K1 * (1 - self.B + self.B * terms.total() / self._mean)
        return sum(
            self._rarity(term) * terms[term] * (self.K1 + 1) / (terms[term] + length)
            for term in query
            if term in terms
        )

    def _rarity(self, term: str) -> float:
        known = self._found_in[term]
        return math.log(1 + (len(self._documents) - known + 0.5) / (known + 0.5))


def _terms(text: str) -> list[str]:
    """Each letter of the name with its place: `ada:407` → a0, d1, a2."""
    name = text.partition(":")[0]
    return [f"{letter}{place}" for place, letter in enumerate(name[:3]) if letter in LETTERS]


def corpus(size: int, seed: int = 0) -> list[str]:
    """`size` documents with names of their own, such as `ada:407`."""
    chance = random.Random(seed)
    names: dict[str, None] = {}
    while len(names) < size:
        names["".join(chance.choices(LETTERS, k=3))] = None
    return [f"{name}:{chance.randrange(1000):03d}" for name in names]


class CorpusConfig(Config):
    """Settings of the task, `--source.*`."""

    documents: int = Field(300, ge=10, le=1000, description="documents in the corpus")
    held_out: int = Field(60, ge=1, description="documents that are only asked for in evaluations")


class Corpus:
    """The source: a question for each document."""

    def __init__(self, config: CorpusConfig) -> None:
        self._config = config

    def prompts(self) -> Prompts:
        """The search knows all documents; the policy is never trained on those that are held out."""
        config = self._config
        questions = [
            Prompt(
                prompt_id=document, text=f"{document.partition(':')[0]}=", label=document.partition(":")[2]
            )
            for document in corpus(config.documents)
        ]
        return Prompts(
            train=questions[config.held_out :], held_out={"questions": questions[: config.held_out]}
        )


@lru_cache(maxsize=1)
def engine() -> Search:
    """The search over the whole corpus, made once in each process."""
    return Search(corpus(CorpusConfig().documents))


async def search(ctx: GenerationContext, sample: Sample) -> Sample:
    """A query of three letters, the number that is found, and the answer."""
    trajectory = Trajectory(ctx, sample)
    asked = await trajectory.answer(most=QUERY_TOKENS)
    if asked.status is GenerationStatus.ABORTED:  # the run makes the sample later
        return trajectory.end(asked.status, "")
    query = asked.text
    found = engine().best(query).partition(":")[2]
    is_right = found == sample.prompt.label
    about = {"metadata": {"query": query}, "metrics": {"found": float(is_right)}}
    if not trajectory.observe(ctx.encode(f",{found}=")):  # nobody samples these tokens, so they are masked
        return trajectory.end(GenerationStatus.TRUNCATED, "", **about)
    answer = await trajectory.answer(most=ANSWER_TOKENS)
    return trajectory.end(answer.status, answer.text, **about)


def answered_by_search(sample: Sample) -> Score:
    """Half for the query, half for the answer; each by the share of characters that are right.

    An answer that does not end is worth half: otherwise three right digits earn as much without an end.
    """
    query = _share(str(sample.metadata["query"]), str(sample.prompt.text).removesuffix("="))
    answer = _share(sample.text, str(sample.prompt.label))
    answer *= 1.0 if sample.status is GenerationStatus.COMPLETED else 0.5
    return Score(value=(query + answer) / 2, parts={"query": query, "answer": answer})


def _share(given: str, wanted: str) -> float:
    """Characters in their place, over the length of the longer text."""
    return sum(a == b for a, b in zip(given, wanted, strict=False)) / max(len(given), len(wanted))


@hookimpl
def rlcore_sources() -> Iterable[Source]:
    """Chosen by `--task corpus`."""
    yield Source(
        name="corpus",
        factory=f"{__name__}:Corpus",
        config=CorpusConfig,
        summary="questions whose answers only a corpus has",
    )


@hookimpl
def rlcore_generators() -> Iterable[Component]:
    """Chosen by `--generator search`."""
    yield Component(name="search", factory=f"{__name__}:search", summary="a query, a document, an answer")


@hookimpl
def rlcore_rewards() -> Iterable[Component]:
    """Chosen by `--reward answered_by_search`."""
    yield Component(
        name="answered_by_search",
        factory=f"{__name__}:answered_by_search",
        adapter="rlcore_functions.reward:factory_of",
        summary="half for the query, half for the answer",
    )
