"""Plugin file: a generator whose samples carry columns of their own; an estimator and a loss read them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import Column
from rlcore.api.generation import GenerationContext
from rlcore.api.hookspecs import hookimpl
from rlcore.api.part_config import AdvantageConfig, GeneratorConfig, LossConfig
from rlcore.api.records import Component
from rlcore.api.training import LossInputs, LossOutput
from rlcore.api.types import Sample
from rlcore_toolkit import answered


class MarkingConfig(GeneratorConfig):
    """Declares the items, of which a response may have none."""

    columns: ClassVar[Mapping[str, Column]] = {
        "even": Column(per="item", lengths="evens", dtype="int32", shape=(2,))
    }


class Marking:
    """One answer to each prompt, with a mark on each token (its id and that squared) and their sum.

    Its even tokens are items too.
    """

    def __init__(self, config: MarkingConfig) -> None:
        pass

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        (done,) = await ctx.complete(sample.prompt_ids, seed=sample.seed, rid=sample.rollout_id)
        answer = answered(sample, done)
        marks = [[token, token * token] for token in answer.response_ids]
        even = [[token, 0] for token in answer.response_ids if token % 2 == 0]
        return replace(answer, extras={"mark": marks, "sum": sum(answer.response_ids), "even": even})


def require_marks(batch: TrainBatch) -> None:
    """Each sample has the marks of its own tokens."""
    mark, total = batch.per_token["mark"], batch.per_sample["sum"]
    assert mark.shape == (len(batch.segments), 2), mark.shape
    assert torch.equal(mark[:, 1], mark[:, 0] ** 2)
    assert torch.equal(torch.zeros_like(total).index_add(0, batch.segments, mark[:, 0]), total)
    even = batch.per_item["even"]
    assert even.dtype == torch.int32
    assert even[:, 0].tolist() == [token for token in mark[:, 0].tolist() if token % 2 == 0]
    assert len(even) == int(batch.per_sample["evens"].sum())


class ByMark:
    """The reward over the sum of the sample's marks."""

    def __init__(self, config: AdvantageConfig) -> None:
        pass

    def estimate(self, batch: TrainBatch) -> Tensor:
        require_marks(batch)
        worth = batch.per_sample["reward"] / (1 + batch.per_sample["sum"])
        return worth[batch.segments].float()


class MarkedLoss:
    """The plain policy gradient; `train/marks` is the mean of the marks."""

    def __init__(self, config: LossConfig) -> None:
        pass

    def __call__(self, inputs: LossInputs) -> LossOutput:
        require_marks(inputs.batch)
        marks = inputs.batch.per_token["mark"][:, 0]
        assert torch.equal(marks, response_tokens(inputs.batch))
        per_token = -inputs.advantages * inputs.log_probs
        return LossOutput(per_token=per_token, metrics={"marks": marks.to(per_token.dtype)})


def response_tokens(batch: TrainBatch) -> Tensor:
    """What was generated, int64 [R]."""
    parts = torch.stack([batch.prompt_lengths, batch.response_lengths], dim=1).flatten()
    is_response = torch.arange(len(parts)).remainder(2).bool()
    return batch.tokens[torch.repeat_interleave(is_response, parts)]


@hookimpl
def rlcore_generators() -> Iterable[Component]:
    yield Component(
        name="marking", factory=f"{__name__}:Marking", summary="marks the tokens", config=MarkingConfig
    )


@hookimpl
def rlcore_advantages() -> Iterable[Component]:
    yield Component(
        name="by_mark", factory=f"{__name__}:ByMark", summary="reads the marks", config=AdvantageConfig
    )


@hookimpl
def rlcore_losses() -> Iterable[Component]:
    yield Component(
        name="marked", factory=f"{__name__}:MarkedLoss", summary="reads the marks", config=LossConfig
    )
