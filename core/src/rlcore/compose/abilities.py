"""The one check of what a run asks of its trainer."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rlcore.api.ability import Ability
from rlcore.api.columns import Input
from rlcore.api.config import flag_name
from rlcore.api.part import Part
from rlcore.api.part_config import TrainerConfig
from rlcore.api.run_config import RunConfig
from rlcore.compose.resolved import Resolved
from rlcore.compose.sentences import refuse

LACKS: Mapping[Ability, str] = {
    Ability.RANKS: "has one rank",
    Ability.VALUES: "has no critic",
    Ability.SCORERS: "has no frozen model",
    Ability.OWN_RANKS: "keeps all models on the policy's workers",
    Ability.SWAPPED: "cannot swap a reference with the policy",
    Ability.REFRESH: "keeps the reference as it is",
    Ability.SLEEP: "cannot leave its devices",
    Ability.ROUTING_REPLAY: "chooses the experts of each token anew",
    Ability.INDEXER_REPLAY: "chooses the keys of each token anew",
    Ability.TOP_TOKENS: "gives the log-prob of the sampled token alone",
    Ability.MODEL_HOOKS: "shows its model to no hook",
    Ability.OWN_WEIGHTS: "has no weights in a form of its own",
    Ability.ADAPTERS: "trains the whole model",
    Ability.POLICIES: "trains one policy",
}


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a run asks for: `found`, the flag and its value; `instead`: what a user may do without it."""

    ability: Ability
    found: str
    instead: str


def missing(trainer: Part[TrainerConfig], demands: Iterable[Demand]) -> Iterator[str]:
    """Why `trainer` cannot do what is demanded: one sentence for each demand that it does not meet."""
    for demand in demands:
        if demand.ability not in trainer.config.abilities:
            lacks = f"the trainer {trainer.name!r} {LACKS[demand.ability]}"
            yield f"{demand.found}, but {lacks}; {demand.instead}, or choose another --trainer."


def require(trainer: Part[TrainerConfig], demand: Demand) -> None:
    """`ConfigError` if `trainer` cannot do what is demanded."""
    refuse(missing(trainer, [demand]))


def part_demands(resolved: Resolved) -> Iterator[Demand]:
    """What the run's models and parts ask of its trainer."""
    yield from _role_demands(resolved)
    loss = resolved.loss
    if loss.config.top_tokens is not None:
        found = f"--loss: found {loss.name!r}, which compares the likeliest tokens"
        yield Demand(ability=Ability.TOP_TOKENS, found=found, instead="choose another loss")
    for hook in resolved.model_hooks:
        found = f"--model-hook: found {hook.name!r}"
        yield Demand(ability=Ability.MODEL_HOOKS, found=found, instead="leave it out")


def _role_demands(resolved: Resolved) -> Iterator[Demand]:
    """What reads each model beside the policy."""
    run = resolved.run
    coefficients = {
        Input.REFERENCE_LOG_PROBS: ("--kl-coef", run.kl.kl_coef),
        Input.TEACHER_LOG_PROBS: ("--distill-coef", run.kl.distill_coef),
    }
    for name, role in resolved.roles.items():
        ability = Ability.VALUES if role.column is Input.VALUES else Ability.SCORERS
        flag, coefficient = coefficients.get(role.column, ("", 0.0))
        if coefficient:
            yield Demand(ability=ability, found=f"{flag}: found {coefficient:g}", instead="leave it out")
        for kind, part in resolved.batch_parts():
            if role.column in part.config.needs:
                found = f"{flag_name(kind)}: found {part.name!r}, which reads a {name}"
                yield Demand(ability=ability, found=found, instead="choose an --algo without one")


def setting_demands(run: RunConfig) -> Iterator[Demand]:
    """What the run's settings ask of its trainer."""
    counts = {"ranks": run.ranks, **{f"{name}.ranks": role.ranks for name, role in run.roles.items()}}
    for name, count in counts.items():
        found = f"{flag_name(name)}: found {count}"
        if count and name != "ranks":
            yield Demand(ability=Ability.OWN_RANKS, found=found, instead="leave it out")
        if count > 1:
            yield Demand(ability=Ability.RANKS, found=found, instead="expected 1")
    settings = {
        "reference.placement": (Ability.SWAPPED, "expected resident"),
        "reference.refresh_every": (Ability.REFRESH, "leave it out"),
        "sleep": (Ability.SLEEP, "leave it out"),
        "replay_routing": (Ability.ROUTING_REPLAY, "leave it out"),
        "replay_indexer": (Ability.INDEXER_REPLAY, "leave it out"),
        "weights": (Ability.OWN_WEIGHTS, "leave it out"),
        "lora.rank": (Ability.ADAPTERS, "leave it out"),
        "lora.from": (Ability.ADAPTERS, "leave it out"),
    }
    for name in run.policies:
        found = f"--policy.{name}: found a further policy"
        yield Demand(ability=Ability.POLICIES, found=found, instead="leave it out")
    for name, (ability, instead) in settings.items():
        if not run.is_default(name):
            found = f"{flag_name(name)}: found {str(run.values()[name]).lower()}"
            yield Demand(ability=ability, found=found, instead=instead)
