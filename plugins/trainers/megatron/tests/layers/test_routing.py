"""Which experts a token gets and with which weights, worked out by hand; and experts over sorted tokens."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rlcore.api.errors import ModelError
from rlcore_megatron.mcore.bridges.files import SafetensorsDir
from rlcore_megatron.mcore.layers.grouped import each, grouped
from rlcore_megatron.mcore.layers.routing import Routing

LOGITS = torch.tensor([[0.0, math.log(2.0), math.log(4.0), math.log(8.0)]])
"""Softmax: 1/15, 2/15, 4/15, 8/15. Sigmoid: 1/2, 2/3, 4/5, 8/9."""


def _route(routing: Routing, bias: list[float] | None = None) -> dict[int, float]:
    scores = routing.scores(LOGITS)
    experts = routing.choose(scores, None if bias is None else torch.tensor(bias))
    weights = routing.weigh(scores, experts)
    return dict(zip(experts[0].tolist(), weights[0].tolist(), strict=True))


@pytest.mark.parametrize(
    ("routing", "bias", "expected"),
    [
        (Routing(top_k=2, score="softmax", normalize=False), None, {3: 8 / 15, 2: 4 / 15}),
        (Routing(top_k=2, score="softmax", normalize=True), None, {3: 2 / 3, 2: 1 / 3}),
        (Routing(top_k=2, score="sigmoid", normalize=False, scale=3.0), None, {3: 8 / 3, 2: 12 / 5}),
        # the bias chooses expert 0; its weight comes from the score alone
        (
            Routing(top_k=2, score="sigmoid", normalize=True, biased=True),
            [1, 0, 0, 0],
            {0: 9 / 25, 3: 16 / 25},
        ),
        # groups (0, 1) and (2, 3): 1/2 + 2/3 + 1/2 of bias is less than 4/5 + 8/9, with expert 0 the best
        (
            Routing(top_k=2, score="sigmoid", normalize=False, biased=True, groups=2, top_groups=1),
            [0.5, 0, 0, 0],
            {3: 8 / 9, 2: 4 / 5},
        ),
    ],
)
def test_by_hand(routing: Routing, bias: list[float] | None, expected: dict[int, float]) -> None:
    assert _route(routing, bias) == pytest.approx(expected, rel=1e-6)


def test_the_choice_takes_no_gradient_and_the_weights_do() -> None:
    routing = Routing(top_k=1, score="softmax", normalize=False)
    logits = LOGITS.clone().requires_grad_()
    scores = routing.scores(logits)
    routing.weigh(scores, routing.choose(scores, None)).sum().backward()
    # d p3 / d z_j = p3 (δ - p_j)
    expected = 8 / 15 * (torch.tensor([0.0, 0.0, 0.0, 1.0]) - torch.tensor([1.0, 2.0, 4.0, 8.0]) / 15)
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad[0], expected)


def test_grouped_multiplication_is_one_an_expert_and_idle_experts_get_a_gradient_of_zero() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(10, 16, generator=draw).bfloat16()
    weight = torch.randn(3, 24, 16, generator=draw).bfloat16().requires_grad_()
    counts = [4, 0, 6]
    out = each(x, weight, counts)
    torch.testing.assert_close(grouped(x, weight, counts), out, atol=0.05, rtol=0.02)
    torch.testing.assert_close(out[4:], x[4:] @ weight[2].T)
    torch.autograd.backward(out, torch.ones_like(out))
    assert weight.grad is not None
    assert not weight.grad[1].any()
    assert weight.grad[0].any()


def test_fp8_files_come_out_in_full_or_not_at_all(tmp_path: Path) -> None:
    weight, scale = torch.ones(2, 2).to(torch.float8_e4m3fn), torch.tensor([[3.0]])
    save_file({"w": weight, "w_scale_inv": scale, "alone": weight.clone()}, tmp_path / "model.safetensors")
    source = _directory(tmp_path, [2, 2])
    assert torch.equal(source["w"], torch.full((2, 2), 3.0))
    with pytest.raises(ModelError, match="lacks 'alone_scale_inv', the scales of the FP8 weight 'alone'"):
        source["alone"]
    with pytest.raises(ModelError, match=r"found \(1, 1\) scales"):
        _directory(tmp_path, [1, 2])["w"]
    with pytest.raises(ModelError, match="says no weight_block_size"):
        _directory(tmp_path, None)["w"]


def _directory(path: Path, block: list[int] | None) -> SafetensorsDir:
    quantization = {"quant_method": "fp8", "weight_block_size": block} if block else None
    (path / "config.json").write_text(json.dumps({"quantization_config": quantization}))
    return SafetensorsDir(path)
