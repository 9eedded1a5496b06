"""The megatron trainer with one fault each, in a critic, in a teacher or among two ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcore import DataRank, LossResult, Rendezvous, RoleSpec, StepResult, TrainBatch
from rlcore_megatron.config import MegatronConfig


class Wrapped:
    """A model or a rank, of which a subclass changes something."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class BrokenRank(Wrapped):
    """Changes the roles that are asked for, and puts its own around the models."""

    def __init__(self, inner: Any, meeting: Rendezvous) -> None:
        super().__init__(inner)
        self.meeting = meeting

    def roles(self, roles: Mapping[str, RoleSpec]) -> Mapping[str, RoleSpec]:
        return roles

    def around(self, role: str, models: Mapping[str, Any]) -> Any:
        """What stands for the model of `role`."""
        return models[role]

    def build(self, roles: Mapping[str, RoleSpec]) -> Mapping[str, Any]:
        models = self._inner.build(self.roles(roles))
        return {role: self.around(role, models) for role in models}


class BrokenTrainer(Wrapped):
    """Its rank is what a subclass names."""

    rank: type[BrokenRank]

    def __init__(self, config: MegatronConfig) -> None:
        from rlcore_megatron.trainer import MegatronTrainer

        super().__init__(MegatronTrainer(config))

    def join(self, meeting: Rendezvous, fields: Mapping[str, Any]) -> BrokenRank:
        return self.rank(self._inner.join(meeting, fields), meeting)


def trainer(rank: type[BrokenRank]) -> type[BrokenTrainer]:
    return type(rank.__name__, (BrokenTrainer,), {"rank": rank})


def with_critic(critic: type[Wrapped]) -> type[BrokenTrainer]:
    """Its critics are of this kind."""

    class Rank(BrokenRank):
        def around(self, role: str, models: Mapping[str, Any]) -> Any:
            return critic(models[role]) if role == "critic" else models[role]

    return trainer(Rank)


# --- critics -------------------------------------------------------------------------------------------


@with_critic
class ValuesAfter(Wrapped):
    """Of the state behind the token."""

    def values(self, batch: TrainBatch, *, tokens_per_rank: int) -> Tensor:
        values: Tensor = self._inner.values(batch, tokens_per_rank=tokens_per_rank)
        return values.roll(-1)


@with_critic
class ValuesTooEarly(Wrapped):
    """Of the state before the token before."""

    def values(self, batch: TrainBatch, *, tokens_per_rank: int) -> Tensor:
        values: Tensor = self._inner.values(batch, tokens_per_rank=tokens_per_rank)
        parts = values.split(batch.response_lengths.tolist())
        return torch.cat([torch.cat([part[:1], part[:-1]]) for part in parts])


@with_critic
class HalfPrecision(Wrapped):
    def values(self, batch: TrainBatch, *, tokens_per_rank: int) -> Tensor:
        values: Tensor = self._inner.values(batch, tokens_per_rank=tokens_per_rank)
        return values.bfloat16()


@with_critic
class MeanOfTwo(Wrapped):
    """Tells the loss that it was given, and follows half of its gradient."""

    def fit(self, batch: TrainBatch, loss: Any, *, tokens_per_rank: int) -> StepResult:
        def half(values: Tensor, part: TrainBatch) -> LossResult:
            result: LossResult = loss(values, part)
            return replace(result, total=result.total / 2)

        step: StepResult = self._inner.fit(batch, half, tokens_per_rank=tokens_per_rank)
        return replace(step, loss=2 * step.loss)


@with_critic
class Uphill(Wrapped):
    def fit(self, batch: TrainBatch, loss: Any, *, tokens_per_rank: int) -> StepResult:
        def negative(values: Tensor, part: TrainBatch) -> LossResult:
            result: LossResult = loss(values, part)
            return replace(result, total=-result.total)

        step: StepResult = self._inner.fit(batch, negative, tokens_per_rank=tokens_per_rank)
        return replace(step, loss=-step.loss)


@with_critic
class CountsEveryStep(Wrapped):
    def fit(self, batch: TrainBatch, loss: Any, *, tokens_per_rank: int) -> StepResult:
        step: StepResult = self._inner.fit(batch, loss, tokens_per_rank=tokens_per_rank)
        self._inner.steps += not step.finite
        return step


@with_critic
class LoadsNothing(Wrapped):
    def load(self, folder: Path) -> None:
        pass


@with_critic
class DoesNotSleep(Wrapped):
    def sleep(self, what: str) -> int:
        return 0

    def wake(self) -> None:
        pass


@trainer
class OneRate(BrokenRank):
    """The critic learns as fast as the policy."""

    def roles(self, roles: Mapping[str, RoleSpec]) -> Mapping[str, RoleSpec]:
        optimizer = next(iter(roles.values())).optimizer
        return {role: replace(spec, optimizer=spec.optimizer and optimizer) for role, spec in roles.items()}


@trainer
class Entangled(BrokenRank):
    """A step of the critic decays the policy's weights."""

    def around(self, role: str, models: Mapping[str, Any]) -> Any:
        if role != "critic" or "policy" not in models:
            return models[role]
        policy = models["policy"]

        class Decaying(Wrapped):
            def fit(self, *args: Any, **more: Any) -> StepResult:
                with torch.no_grad():
                    for chunk in policy.built.chunks:
                        for parameter in chunk.parameters():
                            parameter.mul_(0.99)
                step: StepResult = self._inner.fit(*args, **more)
                return step

        return Decaying(models[role])


# --- teachers and references ---------------------------------------------------------------------------


@trainer
class TeacherOfThePolicy(BrokenRank):
    """Has the weights of the policy's directory."""

    def roles(self, roles: Mapping[str, RoleSpec]) -> Mapping[str, RoleSpec]:
        own = next(iter(roles.values())).model
        return {role: replace(spec, model=own) if role == "teacher" else spec for role, spec in roles.items()}


@trainer
class ReferenceIsThePolicy(BrokenRank):
    """There is one model for both."""

    def around(self, role: str, models: Mapping[str, Any]) -> Any:
        return models["policy"] if role == "reference" else models[role]


@trainer
class OwnTemperature(BrokenRank):
    """A teacher whose logits nobody divides."""

    def around(self, role: str, models: Mapping[str, Any]) -> Any:
        class Cool(Wrapped):
            def forward(self, batch: TrainBatch, *, temperature: float, **more: Any) -> dict[str, Tensor]:
                found: dict[str, Tensor] = self._inner.forward(batch, temperature=1.0, **more)
                return found

        return Cool(models[role]) if role == "teacher" else models[role]


@trainer
class TeacherDoesNotSleep(BrokenRank):
    def around(self, role: str, models: Mapping[str, Any]) -> Any:
        class Awake(Wrapped):
            def sleep(self, what: str) -> int:
                return 0

            def wake(self) -> None:
                pass

        return Awake(models[role]) if role == "teacher" else models[role]


# --- two ranks -----------------------------------------------------------------------------------------


class BrokenPolicy(Wrapped):
    """The policy of a rank that knows its place."""

    def __init__(self, inner: Any, meeting: Rendezvous) -> None:
        super().__init__(inner)
        self.number, self.ranks = meeting.rank, meeting.world_size


def with_policy(policy: type[BrokenPolicy]) -> type[BrokenTrainer]:
    """Its policies are of this kind."""

    class Rank(BrokenRank):
        def around(self, role: str, models: Mapping[str, Any]) -> Any:
            return policy(models[role], self.meeting) if role == "policy" else models[role]

    return trainer(Rank)


@with_policy
class MeanOverRanks(BrokenPolicy):
    """As torch's DistributedDataParallel reduces."""

    def train(self, batch: TrainBatch, loss: Any, **more: Any) -> StepResult:
        def mean(outputs: Any, part: TrainBatch) -> LossResult:
            result: LossResult = loss(outputs, part)
            return replace(result, total=result.total / self.ranks)

        step: StepResult = self._inner.train(batch, mean, **more)
        return replace(step, loss=step.loss * self.ranks)


@with_policy
class OwnLoss(BrokenPolicy):
    """Each rank tells a loss of its own."""

    def train(self, *args: Any, **more: Any) -> StepResult:
        step: StepResult = self._inner.train(*args, **more)
        return replace(step, loss=step.loss / (1 + self.number))


@with_policy
class TurnedOrder(BrokenPolicy):
    """The second rank publishes backwards."""

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        return iter([*self._inner.hf_tensors()][:: -1 if self.number else 1])


@with_policy
class FirstRankPublishes(BrokenPolicy):
    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        return iter([*self._inner.hf_tensors()] if not self.number else [])


@with_policy
class SavesTheStart(BrokenPolicy):
    """What it saves is the model before its first step."""

    def train(self, *args: Any, **more: Any) -> StepResult:
        if "first" not in vars(self):
            self.first = self._inner.stage()
        step: StepResult = self._inner.train(*args, **more)
        return step

    def stage(self) -> Any:
        return self.first


@with_policy
class SameDice(BrokenPolicy):
    """After a load, the second rank draws the random numbers of the first."""

    def load(self, folder: Path) -> None:
        self._inner.load(folder)
        if self.number:
            torch.manual_seed(0)


@trainer
class OneShare(BrokenRank):
    """Every rank takes the first share."""

    @property
    def data(self) -> DataRank:
        data: DataRank = self._inner.data
        return replace(data, number=0)


@trainer
class NoGroup(BrokenRank):
    """Its ranks cannot reach each other."""

    @property
    def data(self) -> DataRank:
        data: DataRank = self._inner.data
        return replace(data, group=None)
