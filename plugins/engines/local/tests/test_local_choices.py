"""What the server says that a model chose is what transformers' own router and indexers choose."""

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

from rlcore import INDEXER_TOPK, ROUTED_EXPERTS
from rlcore_local.testing import Local
from rlcore_local.weights import Weights
from rlcore_testing.nested import FILE, joined
from rlcore_toolkit import unpacked_keys

LAYERS, TOP = 2, 2
FAMILIES = {ROUTED_EXPERTS: "qwen3_moe", INDEXER_TOPK: "glm_moe_dsa"}


def _found(answer: dict[str, Any], column: str = ROUTED_EXPERTS) -> Any:
    data = base64.b64decode(answer["meta_info"][column])
    if column == INDEXER_TOPK:
        bits = unpacked_keys(data, 1, 8)[:, 0]  # the second layer shares what the first one chose
        return torch.tensor(np.unpackbits(bits, axis=-1, bitorder="little"))
    return torch.tensor(np.frombuffer(data, dtype="<i4")).view(-1, LAYERS, TOP).sort(-1).values


def _expected(path: Path, ids: list[int], column: str = ROUTED_EXPERTS) -> Any:
    models: Any = AutoModelForCausalLM
    model, keys = models.from_pretrained(path, dtype=torch.float32).eval(), []
    if column == INDEXER_TOPK:
        model.model.layers[0].self_attn.indexer.register_forward_hook(lambda *call: keys.append(call[2][0]))
    with torch.no_grad():
        output = model(torch.tensor([ids]), output_router_logits=True)
    if column == INDEXER_TOPK:
        bits = torch.zeros(len(ids), 64, dtype=torch.uint8).scatter_(1, keys[0].long(), 1)
        return bits.tril()
    return torch.stack([logit.topk(TOP, -1).indices for logit in output.router_logits], 1).sort(-1).values


@pytest.mark.parametrize("column", FAMILIES)
@pytest.mark.parametrize("interrupted", [False, True], ids=["", "retracted"])
def test_choices_of_prompt_and_answer(
    model_path: Callable[..., Path], column: str, interrupted: bool
) -> None:
    path = model_path(FAMILIES[column])
    engine = Local(path, max_batch=2)
    prompts = {"a": [5, 6, 7], "b": [5, 6, 7], "c": [9], "d": [11, 12]}
    sequences = [
        engine.sequence(rid, ids, sampling_seed=number) for number, (rid, ids) in enumerate(prompts.items())
    ]
    for sequence in sequences[:3]:
        sequence.columns = frozenset({column})
    if interrupted:
        engine.run(sequences, steps=4)
        engine.scheduler.retract()
        sequences = []
    answers = engine.run(sequences)
    for rid in "abc":
        ids = prompts[rid] + answers[rid]["output_ids"]
        assert torch.equal(_found(answers[rid], column), _expected(path, ids, column)[:-1])
    assert column not in answers["d"]["meta_info"]


def test_an_abort_brings_what_was_taken_in(model_path: Callable[..., Path]) -> None:
    engine = Local(model_path("qwen3_moe"), max_batch=1)
    sequences = [engine.sequence(rid, [5, 6, 7]) for rid in "ab"]
    for sequence in sequences:
        sequence.columns = frozenset({ROUTED_EXPERTS})
    engine.run(sequences, steps=2)
    engine.scheduler.abort(None)
    answers = engine.run([])
    assert len(_found(answers["a"])) == 3 + 2 - 1
    assert answers["b"]["meta_info"]["routed_experts"] == ""


def test_a_dense_model_has_none(model_path: Callable[..., Path]) -> None:
    assert Weights(model_path("qwen3"), torch.float32, None).choices.columns == set()


def test_a_router_has_the_dtype_that_a_trainer_publishes(model_path: Callable[..., Path]) -> None:
    held = Weights(model_path("glm_moe_dsa"), torch.bfloat16, None).tensors()
    full = {name for name, tensor in held.items() if tensor.dtype == torch.float32}
    assert {name.rpartition(".")[2] for name in full} == {"e_score_correction_bias"}


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
