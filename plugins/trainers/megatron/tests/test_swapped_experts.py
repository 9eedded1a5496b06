"""A swapped reference with experts: the biases of its routers are its own too."""

from pathlib import Path
from typing import Any

import torch

from rlcore import Config, ModelSpec, Part
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.swapped import SwappedRole, host_weights
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import make_experts, random_batch


def _biases(role: Role) -> list[torch.Tensor]:
    named = [item for chunk in role.built.chunks for item in chunk.named_buffers()]
    return [buffer for name, buffer in named if name.endswith("expert_bias")]


def _on_one_rank(rank: int, world: int, port: int, path: str, folder: str) -> bool:
    parallel.start(rank, world, "127.0.0.1", port)
    bridge = Part(name="glm_moe", factory="rlcore_glm.moe:GlmMoeBridge", config=Config())
    policy = Role(ModelSpec(path=path, bridge=bridge), None)
    batch = random_batch(4)
    ways: dict[str, Any] = {"temperature": 1.0, "tokens_per_rank": 512}
    before = policy.forward(batch, **ways)["log_probs"]
    own = [bias.clone() for bias in _biases(policy)]
    assert own
    for bias in _biases(policy):
        bias.copy_(bias.flip(0) + torch.tensor([1.0, 0.0, 0.0, 0.0]))
    other = policy.forward(batch, **ways)["log_probs"]
    assert not torch.equal(other, before)
    reference = SwappedRole(policy, host_weights(policy))
    for bias, value in zip(_biases(policy), own, strict=True):
        bias.copy_(value)

    assert torch.equal(reference.forward(batch, **ways)["log_probs"], other)
    assert torch.equal(policy.forward(batch, **ways)["log_probs"], before)
    reference.save(Path(folder))
    again = SwappedRole(policy, host_weights(policy))
    again.load(Path(folder))
    assert torch.equal(again.forward(batch, **ways)["log_probs"], other)
    assert torch.equal(policy.forward(batch, **ways)["log_probs"], before)
    parallel.stop()
    return True


def test_the_biases_of_routers_are_swapped(tmp_path: Path) -> None:
    model = make_experts(tmp_path / "model")
    assert run_ranks(_on_one_rank, 1, str(model), str(tmp_path / "saved"), timeout=120) == [True]
