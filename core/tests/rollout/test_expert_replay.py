"""The experts that an engine chose, from its answer to a column of the batch."""

import base64
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import ROUTED_EXPERTS
from rlcore.api.errors import EngineError, PluginError
from rlcore.api.generation import Completion, Request
from rlcore.api.types import Group, Sample, Sampling, Score, Span
from rlcore.engines import client_wire as wire
from rlcore.rollout.batch import split, to_batch
from rlcore.rollout.expert_replay import expert_column, with_experts
from rlcore_testing.samples import sample_of
from rlcore_toolkit.partial import join

LAYERS, TOP = 2, 3


def _experts(tokens: int, first: int = 0) -> str:
    """As SGLang writes them; token t of layer l has the experts 100 * l + t …"""
    t, layer, k = np.ogrid[first : first + tokens, :LAYERS, :TOP]
    return base64.b64encode((100 * layer + t + k).astype("<i4").tobytes()).decode()


def _sample(index: int, prompt: int, response: int, tokens: int, **changes: object) -> Sample:
    sample = sample_of(
        (8,) * response,
        prompt_ids=(7,) * prompt,
        index=index,
        log_probs=(-1.0,) * response,
        spans=(Span(start=0, version=0),),
        score=Score(value=1.0),
        engine_columns={ROUTED_EXPERTS: _experts(tokens)},
    )
    return replace(sample, **changes)  # type: ignore[arg-type] # fields of a sample


def _column(*samples: Sample, layers: int = LAYERS) -> Tensor:
    batch = TrainBatch(
        tokens=torch.zeros(sum(len(sample.prompt_ids) + len(sample.response_ids) for sample in samples)),
        prompt_lengths=torch.tensor([len(sample.prompt_ids) for sample in samples]),
        response_lengths=torch.tensor([len(sample.response_ids) for sample in samples]),
    )
    return with_experts(batch, samples, expert_column(layers, TOP)).per_input[ROUTED_EXPERTS]


def test_each_token_keeps_its_experts_wherever_its_sample_goes() -> None:
    samples = (_sample(0, 2, 2, 3), _sample(1, 2, 3, 4), _sample(2, 1, 1, 1))
    group = Group(group_id=0, prompt=samples[0].prompt, samples=samples)
    batch = with_experts(to_batch([group], minibatches=1, version=0), samples, expert_column(LAYERS, TOP))
    column = batch.per_input[ROUTED_EXPERTS]
    assert column.dtype == torch.int16
    assert column[:, 1, 0].tolist() == [100, 101, 102, 0, 100, 101, 102, 103, 0, 100, 0]
    assert column[2].tolist() == [[2, 3, 4], [102, 103, 104]]
    assert column[3].tolist() == [[0, 1, 2]] * LAYERS, "nobody took the last token in"
    assert batch.select([2, 0]).per_input[ROUTED_EXPERTS][:, 1, 0].tolist() == [100, 0, 100, 101, 102, 0]
    shares = split(batch, 2)
    assert sorted(len(share.per_input[ROUTED_EXPERTS]) for share in shares) == [5, 6]


def test_what_is_missing_is_said() -> None:
    with pytest.raises(PluginError, match=r"0\.0 has the experts of 2 tokens, but 3 stand before"):
        _column(_sample(0, 2, 2, 2))
    with pytest.raises(EngineError, match="24 routed experts, expected a multiple of 3 layers times 3"):
        _column(_sample(0, 2, 3, 4), layers=3)
    with pytest.raises(EngineError, match="no int32"):
        _column(_sample(0, 2, 2, 3, engine_columns={ROUTED_EXPERTS: "AAA="}))


def test_tokens_that_nobody_trains_on_need_none() -> None:
    """A tool wrote the end; a response that was cut at a stop string has more than it needs."""
    found = _column(_sample(0, 1, 3, 1, loss_mask=(1, 0, 0)), _sample(1, 1, 1, 5))
    assert found[:, 0, 0].tolist() == [0, 0, 0, 0, 0, 1]


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


def test_an_engine_is_asked_only_if_it_can() -> None:
    info = {"version": "0", "enable_return_routed_experts": True}
    can = wire.capabilities(info)
    request = Request(input_ids=(1,), sampling=Sampling(max_tokens=1), n=2)
    body = wire.generate_body(request, can=can, routed_experts=True)
    assert body["return_routed_experts"] is True
    assert "return_routed_experts" not in wire.generate_body(request, can=can)
    cannot = wire.capabilities({**info, "enable_return_routed_experts": False})
    with pytest.raises(EngineError, match="does not give the experts that it chose"):
        wire.generate_body(request, can=cannot, routed_experts=True)
