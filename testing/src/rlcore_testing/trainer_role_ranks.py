"""What the one rank of a trainer's conformance tests does with a critic, a reference and a teacher."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcore.api.ability import Ability
from rlcore.api.batch import TrainBatch
from rlcore.api.optimizer import OptimizerSettings
from rlcore.api.part import Part
from rlcore.api.trainer import LossResult, StepResult, TrainedValues
from rlcore_testing.tiny import VOCAB_SIZE, random_batch
from rlcore_testing.trainer_ranks import (
    BUDGET,
    SMALL_BUDGET,
    abilities_of,
    apart,
    build,
    differences,
    forward,
    train,
    trainer_of,
)

CRITIC = OptimizerSettings(lr=1e-3, adam_eps=1e-4, lr_schedule="linear", total_steps=8)
"""The critic's optimizer; the policy has another one."""
RATE = 3e-3
LIKE_SGD = OptimizerSettings(lr=RATE * 1e4, adam_eps=1e4, adam_beta1=0.0, clip_grad=0.0)
"""AdamW whose step is nearly -`RATE` times the gradient."""
RETURN = 0.5
"""What the critic learns of every token; the masked ones have no weight."""


def square(values: Tensor, batch: TrainBatch) -> LossResult:
    """Σ weight · mask · ½ (value - return)², and how many values there were."""
    columns = batch.per_token
    losses = columns["weights"] * columns["loss_mask"] * (values - RETURN).square() / 2
    return LossResult(total=losses.sum(), metrics={"tokens": torch.tensor(float(len(values)))})


def no_number(values: Tensor, batch: TrainBatch) -> LossResult:
    """A loss that is not finite."""
    return LossResult(total=values.sum() * float("nan"))


def no_slope(values: Tensor, batch: TrainBatch) -> LossResult:
    """A finite loss, 0, whose gradient is not finite."""
    return LossResult(total=(values - values.detach()).sqrt().sum())


def critic_of(
    port: int, part: Part, bridge: Part, path: str, settings: OptimizerSettings = CRITIC
) -> TrainedValues:
    """A critic that has its worker for itself."""
    critic: TrainedValues = build(port, part, bridge, path, policy=False, critic=settings)["critic"]
    return critic


def fit(critic: TrainedValues, seed: int = 0, loss: Any = square, budget: int = BUDGET) -> StepResult:
    return critic.fit(random_batch(8, seed), loss, tokens_per_rank=budget)


def values_of(critic: TrainedValues, batch: TrainBatch, budget: int = BUDGET) -> Tensor:
    return critic.values(batch, tokens_per_rank=budget)


def with_other_tokens(batch: TrainBatch, place: str) -> TrainBatch:
    """With another token of each sample: the "end" of its prompt, the "first" or "last" of its response."""
    responds = batch.response_lengths > 0
    ends = batch.lengths.cumsum(0)[responds]
    firsts = ends - batch.response_lengths[responds]
    places = {"end": firsts - 1, "first": firsts, "last": ends - 1}[place]
    tokens = batch.tokens.clone()
    tokens[places] = (tokens[places] + 1) % VOCAB_SIZE
    return replace(batch, tokens=tokens)


def with_other_weights(path: Path, out: Path) -> Path:
    """The model of `path` in the new directory `out`, with half of every weight."""
    from safetensors.torch import load_file, save_file

    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(path, out)
    file = out / "model.safetensors"
    save_file({name: tensor / 2 for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    return out


def valued(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> dict[str, Any]:
    """What a critic that has learned a little says of a batch, and of one that differs in a token."""
    critic, batch = critic_of(port, part, bridge, path), random_batch(8)
    for _ in range(3):
        fit(critic)
    values, lengths = values_of(critic, batch), batch.response_lengths
    moved = {
        place: (values_of(critic, with_other_tokens(batch, place)) - values).abs()
        for place in ("end", "first", "last")
    }
    firsts = (lengths.cumsum(0) - lengths)[lengths > 0]
    seconds = (lengths.cumsum(0) - lengths)[lengths > 1] + 1
    return {
        "column": (values.dtype, values.device.type, tuple(values.shape), values.requires_grad),
        "tokens": int(lengths.sum()),
        "spread": float(values.std()),
        "split": apart(values_of(critic, batch, SMALL_BUDGET), values),
        "of its own token": max(float(moved["first"][firsts].max()), float(moved["last"].max())),
        "of the token before": min(float(moved["end"][firsts].min()), float(moved["first"][seconds].min())),
    }


def fitted(rank: int, world: int, port: int, part: Part, bridge: Part, path: str, budget: int) -> Any:
    """Steps of a critic: what it said of each, what its values said before; then the values."""
    critic, batch = critic_of(port, part, bridge, path), random_batch(8)
    steps, wanted = [], []
    for _ in range(4):
        wanted.append(float(square(values_of(critic, batch), batch).total))
        steps.append(fit(critic, budget=budget))
    return steps, wanted, values_of(critic, batch)


def descended(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> tuple[float, float]:
    """How much a step of `LIKE_SGD` takes from the loss, and how much it should by its gradient norm."""
    critic, batch = critic_of(port, part, bridge, path, LIKE_SGD), random_batch(8)
    for _ in range(3):  # a head of zeros passes no gradient on
        fit(critic)
    step = fit(critic)
    after = float(square(values_of(critic, batch), batch).total)
    return step.loss - after, RATE * step.grad_norm**2


def critic_not_finite(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> Any:
    """Two steps, and between them two that cannot be taken."""
    critic, batch = critic_of(port, part, bridge, path), random_batch(8)
    fit(critic)
    before = values_of(critic, batch)
    bad = [fit(critic, loss=loss) for loss in (no_number, no_slope)]
    moved = apart(values_of(critic, batch), before)
    lr = fit(critic, 1).lr
    return [result.finite for result in bad], moved, lr, values_of(critic, batch)


def critic_undisturbed(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> Any:
    """The two steps that `critic_not_finite` takes."""
    critic = critic_of(port, part, bridge, path)
    fit(critic)
    return fit(critic, 1).lr, values_of(critic, random_batch(8))


def critic_saved(rank: int, world: int, port: int, part: Part, bridge: Part, path: str, folder: str) -> Any:
    """Saved after two steps: what follows without a break."""
    critic = critic_of(port, part, bridge, path)
    fit(critic), fit(critic, 1)
    staged = critic.stage()
    third = _after(critic)
    staged.write(Path(folder))
    return third


def critic_resumed(rank: int, world: int, port: int, part: Part, bridge: Part, path: str, folder: str) -> Any:
    """The same from there, by another process."""
    critic = critic_of(port, part, bridge, path)
    critic.load(Path(folder))
    return _after(critic)


def _after(critic: TrainedValues) -> tuple[Tensor, float, float, Tensor]:
    """Values, loss and norm of a step, values after it."""
    before = values_of(critic, random_batch(8))
    step = fit(critic, 2)
    return before, step.loss, step.grad_norm, values_of(critic, random_batch(8))


def beside(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> dict[str, float]:
    """A critic on the policy's worker: how far each moves while the other one is trained."""
    models, batch = build(port, part, bridge, path, critic=CRITIC), random_batch(8)
    policy, critic = models["policy"], models["critic"]
    fit(critic)
    values, scores = values_of(critic, batch), forward(policy, batch)["log_probs"]
    policy_lr = train(policy, 0).lr
    values_moved = apart(values_of(critic, batch), values)
    critic_lr = fit(critic, 1).lr
    trained = forward(policy, batch)["log_probs"]
    fit(critic, 2)
    return {
        "policy_lr": policy_lr,
        "critic_lr": critic_lr,
        "policy_trained": apart(trained, scores),
        "critic_trained": apart(values_of(critic, batch), values),
        "critic_moved": values_moved,
        "policy_moved": apart(forward(policy, batch)["log_probs"], trained),
    }


def scored(
    rank: int, world: int, port: int, part: Part, bridge: Part, path: str, role: str, other: str
) -> dict[str, float]:
    """What a reference or a teacher of the directory `other` says, and how far the policy's step moves it."""
    chosen: Any = trainer_of(part, bridge, other)[1]
    models, batch = build(port, part, bridge, path, **{role: chosen}), random_batch(8)
    policy, scorer = models["policy"], models[role]
    gaps = differences(scorer, batch, other, top=Ability.TOP_TOKENS in abilities_of(part))
    before = forward(scorer, batch)["log_probs"]
    train(policy, 0)
    gaps["kept"] = apart(forward(scorer, batch)["log_probs"], before)
    gaps["split"] = apart(forward(scorer, batch, SMALL_BUDGET)["log_probs"], before)
    return gaps


def rested(rank: int, world: int, port: int, part: Part, bridge: Part, path: str, role: str) -> Any:
    """What a teacher or critic gives before and after a sleep of each kind, and what that frees."""
    chosen: Any = CRITIC if role == "critic" else trainer_of(part, bridge, path)[1]
    alone = role == "teacher"  # as on workers of its own
    models, batch = build(port, part, bridge, path, policy=not alone, **{role: chosen}), random_batch(8)
    model: Any = models[role]

    def said() -> Tensor:
        if role == "critic":
            fit(model)
            return values_of(model, batch)
        return forward(model, batch)["log_probs"]

    freed, outputs = [], [said()]
    for what in ("optimizer", "all"):
        freed.append(model.sleep(what))
        model.wake()
        outputs.append(said())
    return freed, outputs


def restless(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> list[Tensor]:
    """What `rested` asks of a critic, without a sleep."""
    critic = build(port, part, bridge, path, critic=CRITIC)["critic"]
    return [(fit(critic), values_of(critic, random_batch(8)))[1] for _ in range(3)]
