"""What the one rank of a trainer's conformance tests saves, loads and gives out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcore.api.part import Part
from rlcore.api.trainer import SavedWeights, TrainedPolicy
from rlcore_testing.tiny import random_batch
from rlcore_testing.trainer_ranks import (
    apart,
    differences,
    forward,
    largest,
    policy_of,
    train,
    trainer_of,
    weights_of,
)
from rlcore_testing.trainer_reference import hf_distributions, hf_model


def saved(rank: int, world: int, port: int, part: Part, bridge: Part, path: str, folder: str) -> Any:
    """Saved after two steps: what the third step and the random numbers are without a break."""
    policy = policy_of(port, part, bridge, path)
    train(policy, 0), train(policy, 1)
    torch.rand(5)  # a new process begins with other random numbers
    staged = policy.stage()
    third = _after(policy, 2)
    staged.write(Path(folder))
    return third


def resumed(rank: int, world: int, port: int, part: Part, bridge: Part, path: str, folder: str) -> Any:
    """The same from there, by another process, which has only the folder."""
    policy = policy_of(port, part, bridge, path)
    policy.load(Path(folder))
    return _after(policy, 2)


def _after(policy: TrainedPolicy, seed: int) -> tuple[tuple[float, float, float], dict[str, Tensor]]:
    """Loss, norm and learning rate of a step; then the weights, and random numbers."""
    step = train(policy, seed)
    return (step.loss, step.grad_norm, step.lr), {**weights_of(policy), "random numbers": torch.rand(4)}


def published(rank: int, world: int, port: int, part: Part, bridge: Part, path: str, folder: str) -> Any:
    """The names of two publications, and how far transformers' model of the second is from the policy."""
    from safetensors.torch import save_file

    policy = policy_of(port, part, bridge, path)
    before = weights_of(policy)
    train(policy, 0)
    after = weights_of(policy)
    out = Path(folder)
    out.mkdir()
    shutil.copyfile(Path(path) / "config.json", out / "config.json")
    save_file({name: tensor.contiguous() for name, tensor in after.items()}, out / "model.safetensors")
    batch = random_batch(8, seed=5)
    with torch.no_grad():
        _, wanted = hf_distributions(hf_model(str(out)), batch)
    gap = apart(forward(policy, batch)["log_probs"], wanted)
    return list(before), list(after), largest(before, after), gap


def trained(rank: int, world: int, port: int, part: Part, bridge: Part, path: str, folder: str) -> Tensor:
    """Saved after a step: the log-probs of another batch."""
    policy = policy_of(port, part, bridge, path)
    train(policy, 0)
    policy.stage().write(Path(folder))
    return forward(policy, random_batch(8, seed=5))["log_probs"]


def converted(
    rank: int, world: int, port: int, part: Part, bridge: Part, path: str, folder: str, out: str
) -> Tensor:
    """The same of transformers' model of the directory that the trainer makes of it, as the driver does."""
    trainer, spec = trainer_of(part, bridge, path)
    trainer.to_hf(SavedWeights(spec=spec, folder=Path(folder)), Path(out), lambda done, total: None)
    with torch.no_grad():
        return hf_distributions(hf_model(out), random_batch(8, seed=5))[1]


def from_own_weights(
    rank: int, world: int, port: int, part: Part, bridge: Part, path: str, out: str
) -> tuple[Path | None, float]:
    """What `weights_in` says of `path`; how far a policy of what `from_hf` writes is from `path`."""
    trainer: Any = part.build()
    spec = trainer_of(part, bridge, path)[1]
    trainer.from_hf(spec, Path(out), lambda done, total: None)
    policy = policy_of(port, part, bridge, path, weights=str(trainer.weights_in(Path(out))))
    return trainer.weights_in(Path(path)), differences(policy, random_batch(8), path)["log_probs"]


def refusals(rank: int, world: int, port: int, part: Part, bridge: Part, path: str, *folders: str) -> Any:
    """The class of the error by which `load` refuses each folder."""
    policy = policy_of(port, part, bridge, path)
    return [_refusal(policy, Path(folder)) for folder in folders]


def _refusal(policy: TrainedPolicy, folder: Path) -> str:
    try:
        policy.load(folder)
    except Exception as error:
        return type(error).__name__
    return "nothing"


def damage(folder: Path, out: Path) -> None:
    """A copy of `folder` whose largest file is cut in half."""
    shutil.copytree(folder, out)
    file = max((file for file in out.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)
