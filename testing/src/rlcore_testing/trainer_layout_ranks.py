"""What each of two ranks of a trainer's conformance tests does, and the one rank beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.part import ModelSpec, Part
from rlcore.api.part_config import TrainerConfig
from rlcore.api.roles import POLICY, ModelKind, RoleSpec
from rlcore.api.run_config import RunConfig
from rlcore.api.trainer import DataRank, Rendezvous, SavedWeights, StepResult, TrainerRank
from rlcore_machine.network import LOOPBACK, listen
from rlcore_testing.tiny import random_batch
from rlcore_testing.trainer_ranks import SETTINGS, SMALL_BUDGET, forward, largest, train_on, weights_of
from rlcore_testing.trainer_role_ranks import CRITIC, square

STEPS = 3
"""The steps of each rank; the last one comes after it has saved."""


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """What one rank found.

    `share`: its number among the data-parallel ranks. `numbers`: those of the ranks in its group. `rows`: of
    each batch, those that it has; `columns`: of these, log-probs and entropy, and the values of a critic.
    `steps`: of the policy, `fits`: of the critic. `order`: the names of the weights, as they are published;
    `weights`: before the last step.
    """

    share: int
    numbers: tuple[int, ...]
    rows: Sequence[Sequence[int]]
    columns: Sequence[Mapping[str, Tensor]]
    steps: Sequence[StepResult]
    fits: Sequence[StepResult]
    order: Sequence[str]
    weights: Mapping[str, Tensor]
    last: StepResult
    after: Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How `world` ranks of the trainer `part` hold the model at `path`: `fields` of the trainer's table."""

    world: int
    part: Part
    bridge: Part
    path: str
    fields: Mapping[str, Any]

    @property
    def shares(self) -> int:
        """How many shares of a batch there are: ranks that hold one model together have one."""
        config = self.part.config
        return self.world // (config.model_ranks(self.fields) if isinstance(config, TrainerConfig) else 1)

    def spec(self, trainer: Any) -> ModelSpec:
        """The model, for `trainer`, which `part` built."""
        fields = trainer.fields(RunConfig.of(ranks=self.world), self.fields, gpu=False)
        return ModelSpec(path=self.path, bridge=self.bridge, fields=fields)

    def join(
        self, rank: int, port: int, *, has_critic: bool = False
    ) -> tuple[TrainerRank, Mapping[str, Any]]:
        """The rank, and its models."""
        trainer = self.part.build()
        spec = self.spec(trainer)
        meeting = Rendezvous(
            rank=rank,
            world_size=self.world,
            host=LOOPBACK,
            port=port,
            seed=3,
            listener=listen(LOOPBACK, port) if rank == 0 else None,
        )
        joined: TrainerRank = trainer.join(meeting, spec.fields)
        roles = {POLICY: RoleSpec(kind=ModelKind.POLICY, model=spec, optimizer=SETTINGS)}
        if has_critic:
            roles["critic"] = RoleSpec(kind=ModelKind.VALUES, model=spec, optimizer=CRITIC)
        return joined, joined.build(roles)


def batches() -> list[TrainBatch]:
    """With the second one, one of two data-parallel ranks has nothing to train on."""
    return [random_batch(9), random_batch(1, seed=6)]


def together(
    rank: int,
    world: int,
    port: int,
    part: Part,
    bridge: Part,
    path: str,
    fields: Mapping[str, Any],
    folder: str,
    has_critic: bool,
) -> RankReport:
    """Two steps on its share of each batch; saved into `folder`; then a third."""
    layout = Layout(world=world, part=part, bridge=bridge, path=path, fields=fields)
    joined, models = layout.join(rank, port, has_critic=has_critic)
    policy, critic, shares = models[POLICY], models.get("critic"), layout.shares
    rows, columns, steps, fits = [], [], [], []
    for batch in batches():
        mine = list(range(joined.data.number, len(batch), shares))
        share = batch.select(mine)
        outputs = forward(policy, share, SMALL_BUDGET, entropy=True)
        steps.append(train_on(policy, share, SMALL_BUDGET))
        if critic is not None:
            fits.append(critic.fit(share, square, tokens_per_rank=SMALL_BUDGET))
            outputs["values"] = critic.values(share, tokens_per_rank=SMALL_BUDGET)
        rows.append(mine)
        columns.append(outputs)
    weights = weights_of(policy)
    policy.stage().write(Path(folder))
    last, after = _third(policy, joined.data.number, shares)
    numbers = _numbers(joined.data)
    joined.stop()
    return RankReport(
        share=joined.data.number,
        numbers=numbers,
        rows=rows,
        columns=columns,
        steps=steps,
        fits=fits,
        order=list(weights),
        weights=weights,
        last=last,
        after=after,
    )


def resumed_together(
    rank: int,
    world: int,
    port: int,
    part: Part,
    bridge: Part,
    path: str,
    fields: Mapping[str, Any],
    folder: str,
) -> tuple[StepResult, Mapping[str, Tensor]]:
    """The third step of `together`, by new processes, which have only the folder."""
    layout = Layout(world=world, part=part, bridge=bridge, path=path, fields=fields)
    joined, models = layout.join(rank, port)
    policy = models[POLICY]
    policy.load(Path(folder))
    third = _third(policy, joined.data.number, layout.shares)
    joined.stop()
    return third


def saved_by(
    rank: int,
    world: int,
    port: int,
    part: Part,
    bridge: Part,
    path: str,
    saved: Mapping[str, tuple[Mapping[str, Any], str]],
    weights: Mapping[str, Tensor],
    out: str,
) -> dict[str, float]:
    """Layout → how far the directory that the driver makes of its folder is from `weights`."""
    from safetensors.torch import load_file

    trainer = part.build()
    gaps = {}
    for number, (name, (fields, folder)) in enumerate(saved.items()):
        spec = Layout(world=world, part=part, bridge=bridge, path=path, fields=fields).spec(trainer)
        written = Path(out) / str(number)
        trainer.to_hf(SavedWeights(spec=spec, folder=Path(folder)), written, lambda done, total: None)
        tensors: dict[str, Tensor] = {}
        for file in written.glob("*.safetensors"):
            tensors |= load_file(file)
        gaps[name] = largest(tensors, dict(weights))
    return gaps


def _third(policy: Any, share: int, shares: int) -> tuple[StepResult, Mapping[str, Tensor]]:
    """A step, what it leaves and the random numbers after it."""
    batch = random_batch(8, seed=2)
    step = train_on(policy, batch.select(range(share, len(batch), shares)), SMALL_BUDGET)
    return step, {**weights_of(policy), "random numbers": torch.rand(4)}


def _numbers(data: DataRank) -> tuple[int, ...]:
    """Those that the ranks of its group have, by a collective of tensors of the CPU."""
    if data.group is None:
        return (data.number,)
    mine = torch.tensor(data.number)
    every = [torch.zeros_like(mine) for _ in range(dist.get_world_size(data.group))]
    dist.all_gather(every, mine, group=data.group)
    return tuple(map(int, every))
