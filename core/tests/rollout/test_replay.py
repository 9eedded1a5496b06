"""What an engine chose for its tokens, from its answer to a column of the batch."""

import base64
from dataclasses import replace

import pytest
import torch

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import INDEXER_TOPK, REPLAYS, ROUTED_EXPERTS
from rlcore.api.errors import EngineError
from rlcore.api.generation import Completion, Request
from rlcore.api.types import Group, Sample, Sampling, Score, Span
from rlcore.engines import client_wire as wire
from rlcore.rollout.batch import split, to_batch
from rlcore.rollout.replay import with_choices
from rlcore_testing.samples import sample_of
from rlcore_toolkit.partial import join


def _experts(tokens: int, first: int = 0) -> str:
    """Some bytes of each token."""
    return base64.b64encode(bytes(range(first, first + tokens))).decode()


def _sample(index: int, response: int, experts: str, **changes: object) -> Sample:
    sample = sample_of(
        (8,) * response,
        index=index,
        log_probs=(-1.0,) * response,
        spans=(Span(start=0, version=0),),
        score=Score(value=1.0),
        engine_columns={ROUTED_EXPERTS: experts},
    )
    return replace(sample, **changes)  # type: ignore[arg-type] # fields of a sample


def test_each_sample_keeps_what_its_engine_chose_wherever_it_goes() -> None:
    samples = (_sample(0, 2, _experts(2)), _sample(1, 3, _experts(3, first=10)), _sample(2, 1, ""))
    group = Group(group_id=0, prompt=samples[0].prompt, samples=samples)
    batch = with_choices(to_batch([group], minibatches=1, version=0), samples, {ROUTED_EXPERTS})
    assert batch.per_item[ROUTED_EXPERTS].tolist() == [0, 1, 10, 11, 12]
    assert batch.select([2, 1]).per_item[ROUTED_EXPERTS].tolist() == [10, 11, 12]
    shares = split(batch, 2)
    assert sorted(len(share.per_item[ROUTED_EXPERTS]) for share in shares) == [2, 3]
    assert ROUTED_EXPERTS not in batch.reaching("all", "share").per_item


def test_what_is_no_base64_is_refused() -> None:
    sample = _sample(0, 2, "AAA")
    batch = TrainBatch(
        tokens=torch.zeros(3), prompt_lengths=torch.tensor([1]), response_lengths=torch.tensor([2])
    )
    with pytest.raises(EngineError, match=r"The indexer_topk of sample 0\.0 are no base64"):
        with_choices(batch, [replace(sample, engine_columns={INDEXER_TOPK: "AAA"})], {INDEXER_TOPK})


def _completion(tokens: int, experts: str) -> Completion:
    return Completion(
        token_ids=(1,) * tokens,
        log_probs=(0.0,) * tokens,
        text="",
        finish_reason="abort",
        spans=(Span(start=0, version=0),),
        prompt_tokens=2,
        engine_columns={ROUTED_EXPERTS: experts} if experts else {},
    )


def test_a_continuation_brings_the_experts_of_all_before_it() -> None:
    first, rest = _completion(2, _experts(3)), _completion(3, _experts(6, first=50))
    assert join(first, rest, lambda ids: "").engine_columns == rest.engine_columns
    assert join(first, _completion(0, ""), lambda ids: "").engine_columns == first.engine_columns


@pytest.mark.parametrize("column", REPLAYS.values())
def test_an_engine_is_asked_only_if_it_can(column: str) -> None:
    info = {"version": "0", f"enable_return_{column}": True}
    can = wire.capabilities(info)
    request = Request(input_ids=(1,), sampling=Sampling(max_tokens=1), n=2)
    body = wire.generate_body(request, can=can, columns={column})
    assert {name for name in body if name.startswith("return_")} == {"return_logprob", f"return_{column}"}
    assert f"return_{column}" not in wire.generate_body(request, can=can)
    cannot = wire.capabilities({**info, f"enable_return_{column}": False})
    with pytest.raises(EngineError, match=f"does not give the {column} that it chose"):
        wire.generate_body(request, can=cannot, columns={column})
