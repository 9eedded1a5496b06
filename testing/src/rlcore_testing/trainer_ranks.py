"""What the one rank of a trainer's conformance tests does; `rlcore_testing.ranks` runs these functions."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcore.api.ability import Ability
from rlcore.api.batch import TrainBatch
from rlcore.api.model_hook import ModelHook, ModelView
from rlcore.api.optimizer import OptimizerSettings
from rlcore.api.part import ModelSpec, Part
from rlcore.api.part_config import TrainerConfig
from rlcore.api.roles import POLICY, ModelKind, RoleSpec
from rlcore.api.run_config import RunConfig
from rlcore.api.trainer import (
    FrozenPolicy,
    Rendezvous,
    Scorer,
    SleepLevel,
    TokenOutputs,
    TrainedPolicy,
    Trainer,
)
from rlcore_testing.tiny import random_batch
from rlcore_testing.trainer_reference import (
    TEMPERATURE,
    entropy_of,
    every_loss,
    hf_distributions,
    hf_model,
    linear_loss,
    no_number,
    no_slope,
    with_given,
)

SETTINGS = OptimizerSettings(lr=1e-2, adam_eps=1e-4, lr_schedule="linear", total_steps=8, weight_decay=0.1)
BUDGET = 4096
SMALL_BUDGET = 30


def trainer_of(part: Part, bridge: Part, path: str) -> tuple[Trainer, ModelSpec]:
    """The trainer, and the model at `path` with the fields that nobody gave."""
    trainer: Trainer = part.build()
    fields = trainer.fields(RunConfig(), {}, gpu=torch.cuda.is_available())
    return trainer, ModelSpec(path=path, bridge=bridge, fields=fields)


def build(
    port: int,
    part: Part,
    bridge: Part,
    path: str,
    *,
    policy: bool = True,
    hooks: Sequence[ModelHook] = (),
    weights: str | None = None,
    reference: ModelSpec | bool = False,
    is_swapped: bool = False,
    teacher: ModelSpec | None = None,
    critic: OptimizerSettings | None = None,
) -> Mapping[str, Any]:
    """Role → its model on the one rank.

    `reference`: True: of the same directory. `critic`: its optimizer. `policy`: False: only the others, if
    the trainer has workers without a policy.
    """
    trainer, spec = trainer_of(part, bridge, path)
    spec = replace(spec, weights=weights)
    policy = policy or Ability.OWN_RANKS not in abilities_of(part)
    rank = trainer.join(Rendezvous(rank=0, world_size=1, host="127.0.0.1", port=port, seed=3), spec.fields)
    roles: dict[str, RoleSpec] = {}
    if policy:
        roles[POLICY] = RoleSpec(kind=ModelKind.POLICY, model=spec, optimizer=SETTINGS, hooks=hooks)
    if critic:
        roles["critic"] = RoleSpec(kind=ModelKind.VALUES, model=spec, optimizer=critic)
    if reference:
        model = spec if reference is True else reference
        roles["reference"] = RoleSpec(kind=ModelKind.SCORER, model=model, is_swapped=is_swapped)
    if teacher:
        roles["teacher"] = RoleSpec(kind=ModelKind.SCORER, model=teacher)
    return rank.build(roles)


def abilities_of(part: Part) -> frozenset[Ability]:
    """What the trainer says that it can."""
    config = part.config
    assert isinstance(config, TrainerConfig)
    return config.abilities


def policy_of(port: int, part: Part, bridge: Part, path: str, weights: str | None = None) -> TrainedPolicy:
    """The policy alone."""
    policy: TrainedPolicy = build(port, part, bridge, path, weights=weights)[POLICY]
    return policy


def forward(policy: Scorer, batch: TrainBatch, budget: int = BUDGET, **more: Any) -> dict[str, Tensor]:
    outputs: dict[str, Tensor] = policy.forward(
        batch, temperature=TEMPERATURE, tokens_per_rank=budget, **more
    )
    return outputs


def train_on(policy: TrainedPolicy, batch: TrainBatch, budget: int = BUDGET, loss: Any = linear_loss) -> Any:
    return policy.train(batch, loss, temperature=TEMPERATURE, tokens_per_rank=budget)


def train(policy: TrainedPolicy, seed: int, loss: Any = linear_loss, budget: int = BUDGET) -> Any:
    return train_on(policy, random_batch(8, seed), budget, loss)


def weights_of(policy: TrainedPolicy) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in policy.hf_tensors()}


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, NaN where one is not a number."""
    assert one.shape == other.shape
    return float((one - other).abs().max())


def largest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference of all, NaN where one is not a number (`max` would pass over it)."""
    assert one.keys() == other.keys()
    return float(torch.tensor([apart(one[name], other[name]) for name in one]).max())


def differences(scorer: Scorer, batch: TrainBatch, path: str, *, top: bool = False) -> dict[str, float]:
    """Largest differences to transformers: log-probs, entropy; with `top`, the likeliest and given tokens."""
    with torch.no_grad():
        every, wanted = hf_distributions(hf_model(path), batch)
    outputs = forward(scorer, batch, entropy=True, top=3 if top else 0)
    assert outputs["log_probs"].dtype == torch.float32
    assert outputs["log_probs"].device.type == "cpu"
    differences = {
        "log_probs": apart(outputs["log_probs"], wanted),
        "entropy": apart(outputs["entropy"], entropy_of(every)),
    }
    if not top:
        return differences
    assert outputs["top_ids"].device.type == "cpu"
    best, named = every.topk(3).values, with_given(batch)
    given = named.per_token["given"]
    return differences | {
        "top_log_probs": apart(outputs["top_log_probs"], best),
        "top_ids": apart(every.gather(1, outputs["top_ids"]), best),  # of equal tokens, any will do
        "chosen": apart(forward(scorer, named, chosen="given")["top_log_probs"], every.gather(1, given)),
    }


def log_probs(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> dict[str, float]:
    """`differences` of the policy."""
    policy, top = policy_of(port, part, bridge, path), Ability.TOP_TOKENS in abilities_of(part)
    return differences(policy, random_batch(8), path, top=top)


def gradient(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> dict[str, float]:
    """Loss and gradient norm of `every_loss`, and those of autograd on transformers' model."""
    policy, batch, model = policy_of(port, part, bridge, path), random_batch(8), hf_model(path)
    named, top = with_given(batch), Ability.TOP_TOKENS in abilities_of(part)
    results = policy.train(
        named,
        every_loss,
        temperature=TEMPERATURE,
        tokens_per_rank=BUDGET,
        entropy=True,
        entropy_grad=True,
        chosen="given" if top else None,
    )
    every, log_probs = hf_distributions(model, batch)
    chosen = every.gather(1, named.per_token["given"]) if top else None
    outputs = TokenOutputs(log_probs=log_probs, entropy=entropy_of(every), chosen=chosen)
    total = every_loss(outputs, batch).total
    total.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return {
        "loss": abs(results.loss - float(total)),
        "norm": abs(results.grad_norm / float(torch.nn.utils.get_total_norm(gradients)) - 1),
        "tokens": abs(results.metrics["tokens"] - float(batch.response_lengths.sum())),
        "lr": abs(results.lr - SETTINGS.lr),
    }


def split(rank: int, world: int, port: int, part: Part, bridge: Part, path: str, budget: int) -> Any:
    """What a step gives under a bound of tokens, and the weights after it."""
    policy = policy_of(port, part, bridge, path)
    scores = forward(policy, random_batch(8), budget)["log_probs"]
    result = train(policy, 0, budget=budget)
    return scores, result.loss, result.grad_norm, weights_of(policy)


def not_finite(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> dict[str, Any]:
    """Two steps, and between them two that cannot be taken."""
    policy = policy_of(port, part, bridge, path)
    train(policy, 0)
    before = weights_of(policy)
    bad = [train(policy, 0, loss) for loss in (no_number, no_slope)]
    moved = largest(before, weights_of(policy))
    lr = train(policy, 1).lr
    return {
        "finite": [result.finite for result in bad],
        "moved": moved,
        "lr": lr,
        "weights": weights_of(policy),
    }


def undisturbed(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> dict[str, Any]:
    """The two steps that `not_finite` takes."""
    policy = policy_of(port, part, bridge, path)
    train(policy, 0)
    return {"lr": train(policy, 1).lr, "weights": weights_of(policy)}


def scaled(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> dict[str, float]:
    """Learning rates of two steps, with a half and with none of the scheduled one."""
    policy = policy_of(port, part, bridge, path)
    policy.lr_scale = 0.5
    half = train(policy, 0).lr
    policy.lr_scale, before = 0.0, weights_of(policy)
    none = train(policy, 1).lr
    return {"half": half, "none": none, "moved": largest(before, weights_of(policy))}


class FreezeLargest(ModelHook):
    """Freezes the largest of the parameters that it is shown, whatever the trainer calls it."""

    def __init__(self) -> None:
        self.frozen = ""
        self.before: dict[str, Tensor] = {}

    def built(self, model: ModelView) -> None:
        self.before = {name: parameter.detach().clone() for name, parameter in model.parameters.items()}
        if self.before:
            self.frozen = max(self.before, key=lambda name: (self.before[name].numel(), name))
            model.parameters[self.frozen].requires_grad_(False)


def frozen(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> Any:
    """Which parameter a hook froze, and how far each one, and each published weight, went in two steps."""
    hook = FreezeLargest()
    policy = build(port, part, bridge, path, hooks=(hook,))[POLICY]
    assert policy.view is not None, "`TrainedPolicy.view` is what the hooks see at each step"
    before = weights_of(policy)
    train(policy, 0), train(policy, 1)
    shown, after = policy.view.parameters, weights_of(policy)
    moved = {name: apart(hook.before[name], shown[name].detach()) for name in hook.before}
    return hook.frozen, moved, {name: apart(before[name], after[name]) for name in before}


def reference(
    rank: int, world: int, port: int, part: Part, bridge: Part, path: str, is_swapped: bool
) -> dict[str, float]:
    """How far a step of the policy moves its reference, and the policy itself."""
    policy, reference = _with_reference(port, part, bridge, path, is_swapped)
    batch = random_batch(8)
    first = forward(reference, batch)["log_probs"]
    train(policy, 0)
    kept = apart(forward(reference, batch)["log_probs"], first)
    return {"kept": kept, "apart": apart(forward(policy, batch)["log_probs"], first)}


def refreshed(
    rank: int, world: int, port: int, part: Part, bridge: Part, path: str, is_swapped: bool
) -> dict[str, float]:
    """How far a reference is from the policy that it takes over."""
    policy, reference = _with_reference(port, part, bridge, path, is_swapped)
    batch = random_batch(8)
    train(policy, 0)
    reference.copy_weights(policy)
    copied = apart(forward(reference, batch)["log_probs"], forward(policy, batch)["log_probs"])
    train(policy, 1)
    with tempfile.TemporaryDirectory() as folder:
        policy.stage().write(Path(folder))
        reference.load(Path(folder))
    loaded = apart(forward(reference, batch)["log_probs"], forward(policy, batch)["log_probs"])
    return {"copied": copied, "loaded": loaded}


def _with_reference(
    port: int, part: Part, bridge: Part, path: str, is_swapped: bool
) -> tuple[TrainedPolicy, FrozenPolicy]:
    models = build(port, part, bridge, path, reference=True, is_swapped=is_swapped)
    return models[POLICY], models["reference"]


def slept(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> dict[str, Any]:
    """A step, a sleep of each kind and a step after it, beside a policy that stays awake."""
    models = build(port, part, bridge, path, reference=True)
    policy, other = models[POLICY], models["reference"]
    levels: tuple[SleepLevel, ...] = ("optimizer", "all")
    batch = random_batch(8)
    scores = forward(other, batch)["log_probs"]
    results, freed, left, lent = [], [], [], []
    for seed, what in enumerate(levels):
        train(policy, seed)
        policy.sleep("optimizer")
        published = [tensor for _, tensor in policy.hf_tensors()]
        freed.append(policy.sleep(what) + other.sleep(what))
        left.append(sum(tensor.untyped_storage().nbytes() for tensor in published))
        policy.sleep("publish" if what == "all" else what)
        lent.append(weights_of(policy))
        policy.wake()
        other.wake()
        results.append(weights_of(policy))
    moved = apart(forward(other, batch)["log_probs"], scores)
    return {"weights": results, "lent": lent, "freed": freed, "left": left, "moved": moved}


def awake(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> list[dict[str, Tensor]]:
    """The weights after each of the steps that `slept` takes."""
    policy = policy_of(port, part, bridge, path)
    return [(train(policy, seed), weights_of(policy))[1] for seed in range(2)]
