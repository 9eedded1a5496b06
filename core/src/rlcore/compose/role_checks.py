"""Checks of critic, reference and teacher: a run has each of them exactly when something reads it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from urllib.parse import urlsplit

from rlcore.api.config import flag_name
from rlcore.api.inputs import Input, TopTokens
from rlcore.api.part_config import BatchConfig
from rlcore.api.records import Kind
from rlcore.api.run_config import RunConfig
from rlcore.api.server_config import frozen_name
from rlcore.compose.resolved import Resolved
from rlcore.compose.roles import REFERENCE, own_ranks
from rlcore.compose.sentences import to_add, unread, unread_flags
from rlcore.config.layers import Setting
from rlcore.plugins.registry import Registry


def role_complaints(resolved: Resolved, settings: Mapping[str, Setting], registry: Registry) -> Iterator[str]:
    """A critic or reference that is missing, and settings of one that nothing reads."""
    run, needs = resolved.run, resolved.needs
    readers = _readers(resolved, Input.VALUES)
    if readers and resolved.value_loss is None:
        found = f"--value-loss: found none, but {readers[0]} reads a critic's values"
        yield f"{found}{to_add(f'--value-loss {name}' for name in registry.names(Kind.VALUE_LOSS))}."
    if resolved.value_loss is not None and not readers:
        found = f"--value-loss: found {resolved.value_loss.name!r}, but nothing reads a critic's values"
        reading = [f"--advantage {name}" for name in _names_reading(registry, Kind.ADVANTAGE, Input.VALUES)]
        yield f"{found}{to_add([*reading, '--value-loss none'])}."
    if not readers:
        reason = f"there is no critic{to_add(_recipes_with(registry, Kind.VALUE_LOSS))}"
        own = ("critic_model", "critic_ranks", "critic_warmup_steps", "critic_lr_schedule")
        yield from unread(run, own, reason)
        numbers = ("critic_lr_warmup_steps", "critic_min_lr", "critic_weight_decay", "critic_clip_grad")
        yield from unread_flags(settings, ("critic_lr", *numbers), reason)
    if Input.REFERENCE_LOG_PROBS not in needs:
        names = ("reference_model", "reference_ranks", "reference_refresh_every", "kl_unbiased")
        reason = "nothing reads the reference; add --kl-coef"
        yield from unread(run, (*names, "reference_placement"), reason)
        yield from unread_flags(settings, ("kl_estimator", "kl_place"), reason)
    if run.kl.reference_placement == "swapped" and run.kl.reference_ranks:
        yield (
            "--reference-placement: found swapped, which borrows the policy's model, but --reference-ranks "
            "gives the reference workers of its own; leave one of them out."
        )
    if run.kl.kl_unbiased and run.kl.kl_place != "loss":
        yield f"--kl-unbiased: found true with --kl-place {run.kl.kl_place}, expected --kl-place loss."
    lowest, peak = run.critic.optimizer(run.optimizer).min_lr, run.critic.critic_lr
    if readers and lowest > peak:
        flag = "--min-lr" if run.critic.critic_min_lr is None else "--critic-min-lr"
        yield f"{flag}: found {lowest:g}, expected at most --critic-lr ({peak:g})."


def role_table_complaints(resolved: Resolved, roles: Collection[str]) -> Iterator[str]:
    """Fields of a role that the run does not have, or of a layout that the policy's workers cannot hold."""
    config = resolved.trainer.config
    for role, fields in resolved.role_fields.items():
        flag = flag_name(f"{role}.{config.table}.{next(iter(fields))}")
        if role not in roles:
            yield f"{flag}: the run has no {role}; leave it out."
        elif role == REFERENCE and resolved.run.kl.reference_placement == "swapped":
            yield f"{flag}: the reference borrows the policy's model by --reference-placement swapped."
        elif role not in own_ranks(resolved.run):
            yield from config.beside_complaints(role, resolved.trainer_fields, fields)


def role_rank_complaints(resolved: Resolved) -> Iterator[str]:
    """The ranks of roles with workers of their own.

    They must hold whole models. And each of the role's models must get the samples of a whole number of the
    policy's models, or the other way round, so that results find their samples.
    """
    config = resolved.trainer.config
    policies = resolved.run.ranks // config.model_ranks(resolved.trainer_fields)
    for role, ranks in own_ranks(resolved.run).items():
        found = f"--{role}-ranks: found {ranks}"
        model = config.model_ranks(resolved.fields_of(role))
        copies = ranks // model
        if ranks % model:
            yield (
                f"{found}, expected a multiple of {model}, the ranks that hold the {role} under the "
                "trainer's parallel sizes."
            )
        elif copies % policies and policies % copies:
            yield (
                f"{found}, which hold {copies} {role}s, expected a number that divides the {policies} "
                "policies of --ranks, or is divided by it."
            )


def _readers(resolved: Resolved, column: Input) -> list[str]:
    """The parts that read `column`, in words."""
    parts = resolved.batch_parts()
    return [f"{kind} {part.name!r}" for kind, part in parts if column in part.config.needs]


def teacher_complaints(resolved: Resolved, registry: Registry) -> Iterator[str]:
    """A teacher that is missing, that nothing reads, or that cannot give what is read."""
    run = resolved.run
    readers = _readers(resolved, Input.TEACHER_LOG_PROBS)
    readers += ["--distill-coef"] if run.teacher.distill_coef else []
    model, urls = run.teacher.teacher_model, run.teacher.teacher_url
    chosen = [f"--teacher-model: found {model!r}"] if model else []
    chosen += [f"--teacher-url: found {urls[0]!r}"] if urls else []
    if chosen and not readers:
        ways = [*_recipes_reading(registry, Input.TEACHER_LOG_PROBS), "--distill-coef"]
        yield f"{chosen[0]}, but nothing reads the teacher{to_add(ways)}."
    if readers and not chosen:
        yield (
            f"--teacher-model: found none, but {readers[0]} compares with a teacher; add --teacher-model "
            "PATH or --teacher-url URL."
        )
    if len(chosen) > 1:
        yield f"{chosen[0]}, and {chosen[1]}; expected one teacher."
    if not model:
        yield from unread(run, ("teacher_ranks",), "no train worker has a teacher; add --teacher-model")
    if urls:
        yield from _url_complaints(run, resolved.loss.config.top_tokens)


def _url_complaints(run: RunConfig, top: TopTokens | None) -> Iterator[str]:
    found = f"--teacher-url: found {run.teacher.teacher_url[0]!r}"
    names = [name for name, _ in run.teacher.teachers]
    for name, url in run.teacher.teachers:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and parts.netloc
        if not is_url and frozen_name(url) is None:
            yield f"--teacher-url: found {url!r}, expected a URL such as http://127.0.0.1:30000."
        if names.count(name) > 1:
            what = f"the name {name!r}" if name else "a URL without a name"
            yield f"--teacher-url: found {what} twice; expected NAME=URL, each name once."
    if run.sampling.temperature != 1.0:
        yield (
            f"--temperature: found {run.sampling.temperature:g}, but the engine of --teacher-url scores at "
            "temperature 1; expected 1, or --teacher-model."
        )
    if top is not None:
        yield (
            f"{found}, but the loss compares {top.count} tokens of each position, and an engine scores the "
            "sampled token alone; use --teacher-model."
        )


def _recipes_with(registry: Registry, kind: Kind) -> list[str]:
    """The flags of the recipes that have a part of `kind`."""
    recipes = [entry.recipe for entry in registry.entries(Kind.ALGORITHM)]
    return [f"--algo {recipe.name}" for recipe in recipes if recipe.parts.get(kind)]


def _recipes_reading(registry: Registry, column: Input) -> list[str]:
    """The flags of the recipes with a part that reads `column`."""
    close = [
        recipe.name
        for recipe in (entry.recipe for entry in registry.entries(Kind.ALGORITHM))
        for kind, parts in recipe.parts.items()
        for part in ([parts] if isinstance(parts, str) else parts)
        if part in _names_reading(registry, Kind(kind), column)
    ]
    return [f"--algo {name}" for name in dict.fromkeys(close)]


def _names_reading(registry: Registry, kind: Kind, column: Input) -> list[str]:
    """The names of the parts of `kind` that read `column`."""
    parts = [(entry.record.name, entry.config) for entry in registry.entries(kind)]
    return [name for name, config in parts if issubclass(config, BatchConfig) and column in config.needs]
