"""What tests of the trainer `fsdp` do on a rank: join, build a policy, score a batch with it, train it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcore import (
    AdapterSpec,
    ModelKind,
    ModelSpec,
    OptimizerSettings,
    Part,
    Rendezvous,
    RoleSpec,
    SavedWeights,
    TrainBatch,
)
from rlcore_fsdp.config import FsdpConfig
from rlcore_fsdp.trainer import FsdpTrainer
from rlcore_testing.trainer_reference import TEMPERATURE, linear_loss

NO_BRIDGE = Part(name="none", factory="rlcore.api.part:Part")
SETTINGS = OptimizerSettings(lr=1e-2, clip_grad=0.0)
ADAPTER = AdapterSpec(rank=4, alpha=8.0)
BUDGET = 60


def join(rank: int, world: int, port: int, config: FsdpConfig) -> Any:
    """The rank, once it has joined the others."""
    meeting = Rendezvous(rank=rank, world_size=world, host="127.0.0.1", port=port, seed=3)
    return FsdpTrainer(config).join(meeting, {})


def model_of(path: str, dtype: str = "fp32") -> ModelSpec:
    """A directory, without a bridge."""
    return ModelSpec(path=path, bridge=NO_BRIDGE, dtype=dtype)


def policy_spec(
    model: ModelSpec, overlay: AdapterSpec | None = ADAPTER, optimizer: OptimizerSettings = SETTINGS
) -> RoleSpec:
    """A policy with an adapter."""
    return RoleSpec(kind=ModelKind.POLICY, model=model, optimizer=optimizer, overlay=overlay)


def policy_of(joined: Any, spec: RoleSpec) -> Any:
    """The policy of the rank that has joined."""
    return joined.build({"policy": spec})["policy"]


def scores(scorer: Any, batch: TrainBatch) -> Tensor:
    """Log-probs of the whole batch."""
    found = scorer.forward(batch, temperature=TEMPERATURE, tokens_per_rank=BUDGET)
    return torch.as_tensor(found["log_probs"])


def train(policy: Any, batch: TrainBatch, rank: int = 0, world: int = 1) -> Any:
    """A step on this rank's share of the batch."""
    share = batch.select(range(rank, len(batch), world))
    return policy.train(share, linear_loss, temperature=TEMPERATURE, tokens_per_rank=BUDGET)


def export(config: FsdpConfig, model: ModelSpec, folder: str) -> Path:
    """What is saved in `folder`, as a directory beside it."""
    out = Path(f"{folder}-merged")
    source = SavedWeights(spec=model, folder=Path(folder))
    FsdpTrainer(config).to_hf(source, out, lambda done, total: None)
    return out
