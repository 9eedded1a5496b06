"""A kernel of another package computes a layer of transformers only if it computes what transformers does."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM
from transformers.models.qwen3_next import modeling_qwen3_next

from rlcore_toolkit import PROBE_TOKENS, BorrowedKernels

RULE = "torch_chunk_gated_delta_rule"
SMALL: dict[str, Any] = {
    **{"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 32, "head_dim": 8},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 0, "pad_token_id": None},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "bos_token_id": None, "eos_token_id": None},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 8},
    "layer_types": ["linear_attention", "full_attention"],
}


def fails(values: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no GPU is here")


KERNELS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "the same": (lambda values: values.clone(), ""),
    "other values": (lambda values: values * 1.01, "differs from transformers' own code by"),
    "no number": (lambda values: values * torch.nan, "differs from transformers' own code by nan"),
    "no gradient": (lambda values: values.detach() + 0 * values, "differs from transformers' own code by"),
    "none at all": (fails, "fails here (RuntimeError: no GPU is here)"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KERNELS)
def test_a_kernel_stays_if_it_computes_the_same(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed, reason = KERNELS[kind]
    plain: Any = inspect.unwrap(vars(modeling_qwen3_next)[RULE])

    @functools.wraps(plain)
    def kernel(*args: Any, **options: Any) -> tuple[torch.Tensor, Any]:
        values, state = plain(*args, **options)
        return changed(values), state

    monkeypatch.setattr(modeling_qwen3_next, RULE, kernel)
    torch.manual_seed(0)
    model: Any = Qwen3NextForCausalLM(Qwen3NextConfig(**SMALL)).eval().to(dtype)
    borrowed = BorrowedKernels(model)
    with torch.no_grad(), borrowed.checked():
        model(torch.arange(PROBE_TOKENS)[None] % SMALL["vocab_size"], use_cache=False)
    said = capsys.readouterr().out
    assert vars(modeling_qwen3_next)[RULE] is (plain if reason else kernel)
    assert borrowed.is_kept is not bool(reason)
    assert reason in said
    assert said.count("\n") == bool(reason)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_kernels_of_models_that_call_none_are_not_tried() -> None:
    borrowed = BorrowedKernels(torch.nn.Linear(2, 2))
    borrowed.check(lambda: [fails(torch.zeros(1))])
    assert borrowed.is_kept
