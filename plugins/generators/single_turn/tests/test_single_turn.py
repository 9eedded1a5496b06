"""The generator `single_turn`: requests, and what becomes of each finish reason."""

from collections.abc import Sequence

import pytest

from rlcore.api.generation import Completion, Generator, GroupGenerator, Request
from rlcore.api.part import Part
from rlcore.api.types import GenerationStatus, Prompt, Sample, Sampling, Span
from rlcore.rollout.context import ContextBase
from rlcore_single_turn.config import SingleTurnConfig
from rlcore_single_turn.generator import SingleTurn
from rlcore_single_turn.plugin import rlcore_generators
from rlcore_testing.generators import GeneratorConformance
from rlcore_testing.token_engine import ByteTokenizer


class Context(ContextBase):
    """Answers from a list and remembers what it was asked."""

    def __init__(self, *reasons: str) -> None:
        self.tokenizer, self.sampling, self.context_length = ByteTokenizer(), Sampling(max_tokens=4), 99
        self._reasons = list(reasons)
        self.asked: list[tuple[tuple[int, ...], int, int, str]] = []

    async def generate(self, request: Request) -> Sequence[Completion]:
        self.asked.append((tuple(request.input_ids), request.n, request.seed, request.rid))
        return [
            Completion(
                token_ids=(7, 8),
                log_probs=(-0.5, -1.5),
                text=f"answer {index}",
                finish_reason=self._reasons.pop(0),
                spans=(Span(start=0, version=3), Span(start=1, version=4)),
                prompt_tokens=len(request.input_ids),
            )
            for index in range(request.n)
        ]

    async def score(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        raise AssertionError("it judges nothing")

    def encode(self, text: str) -> tuple[int, ...]:
        raise AssertionError("tokens in, tokens out")

    def decode(self, ids: Sequence[int]) -> str:
        raise AssertionError("tokens in, tokens out")


def sample(index: int) -> Sample:
    prompt = Prompt(prompt_id="p", text="12=")
    return Sample(
        prompt=prompt, prompt_ids=(1, 2), group_id=5, index=index, rollout_id=f"5.{index}", seed=40 + index
    )


async def test_a_group_is_one_request() -> None:
    ctx = Context("stop", "length", "abort")
    found = await SingleTurn(SingleTurnConfig()).generate_group(ctx, [sample(0), sample(1), sample(2)])
    assert ctx.asked == [((1, 2), 3, 40, "5.0-0")]
    assert [done.status for done in found] == [
        GenerationStatus.COMPLETED,
        GenerationStatus.TRUNCATED,
        GenerationStatus.ABORTED,
    ]
    assert [done.rollout_id for done in found] == ["5.0", "5.1", "5.2"]
    assert [done.text for done in found] == ["answer 0", "answer 1", "answer 2"]


async def test_a_sample_alone() -> None:
    ctx = Context("stop")
    found = await SingleTurn(SingleTurnConfig()).generate(ctx, sample(1))
    assert ctx.asked == [((1, 2), 1, 41, "5.1-0")]
    assert (found.response_ids, found.loss_mask, found.log_probs) == ((7, 8), (1, 1), (-0.5, -1.5))
    assert found.versions == {3, 4}
    assert found.prompt_ids == (1, 2)


def test_the_component_builds_the_generator() -> None:
    (component,) = rlcore_generators()
    generator: Generator = Part(name=component.name, factory=component.factory).build()
    assert isinstance(generator, SingleTurn)
    assert isinstance(generator, GroupGenerator)


async def test_fewer_answers_than_samples_are_an_error() -> None:
    class Short(Context):
        async def generate(self, request: Request) -> Sequence[Completion]:
            return []

    with pytest.raises(ValueError, match="shorter"):
        await SingleTurn(SingleTurnConfig()).generate_group(Short(), [sample(0)])


class TestConformance(GeneratorConformance):
    def generator(self) -> Generator:
        return SingleTurn(SingleTurnConfig())
