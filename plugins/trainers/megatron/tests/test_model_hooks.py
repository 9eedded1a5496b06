"""Model hooks: what they see under each layout, and that frozen parameters stay the same to the last bit."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from megatron_ranks import QWEN, share_of

from rlcore import ModelHook, ModelSpec, ModelView, OptimizerSettings
from rlcore_megatron.fields import RECOMPUTE, split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.weights import hf_tensors
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import policy_loss, random_batch

# nothing is clipped: the first step of what is trained does not depend on what is frozen
SETTINGS = OptimizerSettings(lr=1e-2, adam_eps=1e-4, clip_grad=0.0, weight_decay=0.1)
PATTERN = r"embedding|layers\.0\.mlp\.|layers\.1\.self_attention\.linear_qkv\.weight"
FROZEN = r"embed_tokens|layers\.0\.(mlp|post)|layers\.1\.self_attn\.[qkv]_proj"
"""What Hugging Face calls them."""

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tensor": (2, {"tensor_model_parallel_size": 2}),
    "pipeline": (2, {"pipeline_model_parallel_size": 2}),
    "alone": (1, {}),
    "alone-recomputed": (1, RECOMPUTE),
    "data": (2, {}),
    "unsharded": (2, {"use_distributed_optimizer": False}),
}


class Freezing(ModelHook):
    """Freezes what a pattern is found in, and keeps what it was shown."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.view: ModelView | None = None

    def built(self, model: ModelView) -> None:
        self.view = model
        for name, parameter in model.parameters.items():
            parameter.requires_grad_(re.search(self.pattern, name) is None)


def _role(path: str, megatron: dict[str, Any], hooks: list[ModelHook]) -> Role:
    return Role(ModelSpec(path=path, bridge=QWEN, fields=megatron), SETTINGS, hooks=hooks)


def _run(
    rank: int, world: int, port: int, path: str, megatron: dict[str, Any], pattern: str, folder: str
) -> Any:
    """Names seen, and the weights before, after one step, after two, and after two with a save between."""
    parallel.start(rank, world, "127.0.0.1", port, **split(megatron).layout)
    hook = Freezing(pattern)
    hooks: list[ModelHook] = [hook] if pattern else []
    role = _role(path, megatron, hooks)
    batch = random_batch(9)
    share = share_of(batch)

    def weights(of: Role) -> dict[str, Any]:
        return {name: tensor.numpy().copy() for name, tensor in hf_tensors(of.built)}

    def step(of: Role) -> dict[str, Any]:
        assert of.train(share, policy_loss, temperature=0.8, tokens_per_rank=30).finite
        return weights(of)

    found = [weights(role), step(role)]
    role.stage().write(Path(folder))
    found.append(step(role))
    again = _role(path, megatron, hooks)
    again.load(Path(folder))
    found.append(step(again))
    parallel.stop()
    view = hook.view
    return found, None if view is None else (sorted(view.parameters), sorted(view.names))


@pytest.fixture(scope="module")
def whole(model: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All of it trained, on one rank."""
    ((weights, seen),) = run_ranks(_run, 1, model, {}, "", str(tmp_path_factory.mktemp("whole")))
    assert seen is None
    return weights


@pytest.mark.grid
@pytest.mark.parametrize("layout", LAYOUTS)
def test_frozen_parameters_stay_to_the_bit_and_the_others_learn(
    layout: str, model: str, whole: Any, tmp_path: Path
) -> None:
    ranks, megatron = LAYOUTS[layout]
    results = run_ranks(_run, ranks, model, megatron, PATTERN, str(tmp_path / "saved"))
    (before, first, second, resumed), _ = results[0]
    frozen = {name for name in before if re.search(FROZEN, name)}
    assert 5 < len(frozen) < len(before) - 5
    for name in before:
        moved = not np.array_equal(before[name], second[name])
        assert moved is (name not in frozen), name
        assert np.array_equal(second[name], resumed[name]), name
    for name in set(before) - frozen:
        np.testing.assert_allclose(first[name], whole[1][name], atol=2e-5, err_msg=name)


@pytest.mark.parametrize("layout", ["alone", "pipeline"])
def test_each_rank_sees_its_own_and_knows_the_names_of_all(layout: str, model: str, tmp_path: Path) -> None:
    ranks, megatron = LAYOUTS[layout]
    seen = [view for _, view in run_ranks(_run, ranks, model, megatron, PATTERN, str(tmp_path / "saved"))]
    own = [names for names, _ in seen]
    assert all(everyone == sorted({name for names in own for name in names}) for _, everyone in seen)
    assert "decoder.layers.1.mlp.linear_fc1.weight" in own[-1]
    assert ("decoder.layers.1.mlp.linear_fc1.weight" in own[0]) is (ranks == 1)
