"""The experts that the server says it chose are those of transformers' own router."""

import base64
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rlcore_local.testing import Local
from rlcore_local.weights import Weights
from rlcore_testing.nested import FILE, joined

LAYERS, TOP = 2, 2


def _found(answer: dict[str, Any]) -> Any:
    flat = np.frombuffer(base64.b64decode(answer["meta_info"]["routed_experts"]), dtype="<i4")
    return torch.tensor(flat).view(-1, LAYERS, TOP).sort(-1).values


def _expected(path: Path, ids: list[int]) -> Any:
    models: Any = AutoModelForCausalLM
    model = models.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([ids]), output_router_logits=True).router_logits
    return torch.stack([logit.topk(TOP, -1).indices for logit in logits], 1).sort(-1).values


@pytest.mark.parametrize("interrupted", [False, True], ids=["", "retracted"])
def test_experts_of_prompt_and_answer(model_path: Callable[..., Path], interrupted: bool) -> None:
    path = model_path("qwen3_moe")
    engine = Local(path, max_batch=2)
    prompts = {"a": [5, 6, 7], "b": [5, 6, 7], "c": [9], "d": [11, 12]}
    sequences = [
        engine.sequence(rid, ids, sampling_seed=number) for number, (rid, ids) in enumerate(prompts.items())
    ]
    for sequence in sequences[:3]:
        sequence.return_routed_experts = True
    if interrupted:
        engine.run(sequences, steps=4)
        engine.scheduler.retract()
        sequences = []
    answers = engine.run(sequences)
    for rid in "abc":
        ids = prompts[rid] + answers[rid]["output_ids"]
        assert torch.equal(_found(answers[rid]), _expected(path, ids)[:-1])
    assert "routed_experts" not in answers["d"]["meta_info"]


def test_an_abort_brings_what_was_taken_in(model_path: Callable[..., Path]) -> None:
    engine = Local(model_path("qwen3_moe"), max_batch=1)
    sequences = [engine.sequence(rid, [5, 6, 7]) for rid in "ab"]
    for sequence in sequences:
        sequence.return_routed_experts = True
    engine.run(sequences, steps=2)
    engine.scheduler.abort(None)
    answers = engine.run([])
    assert len(_found(answers["a"])) == 3 + 2 - 1
    assert answers["b"]["meta_info"]["routed_experts"] == ""


def test_a_dense_model_has_none(model_path: Callable[..., Path]) -> None:
    assert Weights(model_path("qwen3"), torch.float32, None).routed is None


def test_experts_in_one_tensor_come_one_by_one(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path = model_path("qwen3_moe")
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    apart = load_file(path / FILE)
    save_file(joined(apart), tmp_path / FILE, metadata={"format": "pt"})
    weights = Weights(tmp_path, torch.float32, None)
    assert weights.tensors().keys() == apart.keys()
    changed = joined({name: tensor + 1 for name, tensor in apart.items()})
    save_file(changed, tmp_path / FILE, metadata={"format": "pt"})
    weights.update_from_disk(tmp_path)
    for name, tensor in weights.tensors().items():
        assert torch.equal(tensor, apart[name] + 1), name
