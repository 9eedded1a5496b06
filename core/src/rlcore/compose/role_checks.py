"""Checks of critic, reference and teacher: a run has each of them exactly when something reads it."""

from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from rlcore.api.columns import REPLAYS, Input, TopTokens, TrainsOn
from rlcore.api.config import flag_name
from rlcore.api.optimizer import OptimizerOptions
from rlcore.api.part_config import BatchConfig, GeneratorConfig
from rlcore.api.records import Kind
from rlcore.api.run_config import RunConfig
from rlcore.api.server_config import frozen_name
from rlcore.compose.resolved import Resolved
from rlcore.compose.sentences import to_add, unread, unread_flags
from rlcore.config.layers import Setting
from rlcore.plugins.registry import Registry

CRITIC, REFERENCE = "critic", "reference"


def role_complaints(resolved: Resolved, settings: Mapping[str, Setting], registry: Registry) -> Iterator[str]:
    """A critic or reference that is missing, and settings of one that nothing reads."""
    run, roles = resolved.run, resolved.roles
    readers = _readers(resolved, Input.VALUES)
    if readers and resolved.value_loss is None:
        found = f"--value-loss: found none, but {readers[0]} reads a critic's values"
        yield f"{found}{to_add(f'--value-loss {name}' for name in registry.names(Kind.VALUE_LOSS))}."
    if resolved.value_loss is not None and not readers:
        found = f"--value-loss: found {resolved.value_loss.name!r}, but nothing reads a critic's values"
        reading = [f"--advantage {name}" for name in _names_reading(registry, Kind.ADVANTAGE, Input.VALUES)]
        yield f"{found}{to_add([*reading, '--value-loss none'])}."
    if CRITIC not in roles:
        recipes = [entry.recipe for entry in registry.entries(Kind.ALGORITHM)]
        training = (f"--algo {recipe.name}" for recipe in recipes if recipe.parts.get(Kind.VALUE_LOSS))
        yield from _unread_table(CRITIC, run, settings, f"there is no critic{to_add(training)}")
    if REFERENCE not in roles:
        reason = "nothing reads the reference; add --kl-coef"
        yield from unread(run, ("kl_unbiased",), reason)
        yield from _unread_table(REFERENCE, run, settings, reason)
        yield from unread_flags(settings, ("kl_estimator", "kl_place"), reason)
    if run.reference.placement == "swapped" and run.reference.ranks:
        yield (
            "--reference.placement: found swapped, which borrows the policy's model, but --reference.ranks "
            "gives the reference workers of its own; leave one out."
        )
    if run.kl.kl_unbiased and run.kl.kl_place != "loss":
        yield f"--kl-unbiased: found true with --kl-place {run.kl.kl_place}, expected --kl-place loss."
    lowest, peak = run.critic.optimizer(run.optimizer).min_lr, run.critic.lr
    if CRITIC in roles and lowest > peak:
        flag = "--min-lr" if run.critic.min_lr is None else "--critic.min-lr"
        yield f"{flag}: found {lowest:g}, expected at most --critic.lr ({peak:g})."


def _unread_table(role: str, run: RunConfig, settings: Mapping[str, Setting], reason: str) -> Iterator[str]:
    """A complaint about each setting in the table of a role that the run does not have."""
    # Presets and files set numbers of the optimizer for whatever recipe there will be.
    numbers = OptimizerOptions.model_fields.keys() - {"lr_schedule"}
    names = [f"{role}.{key}" for key in type(run.roles[role]).model_fields if key not in numbers]
    yield from unread(run, names, reason)
    yield from unread_flags(settings, [f"{role}.{key}" for key in sorted(numbers)], reason)


def schedule_complaints(run: RunConfig) -> Iterator[str]:
    """Warm-ups that are longer than the run. Call it once the number of steps is known."""
    total, alone = run.steps, run.critic.only_steps
    for name in ("only_steps", "warmup_steps"):
        steps = getattr(run.critic, name)
        if steps is not None and steps >= total:
            yield f"{flag_name(f'critic.{name}')}: found {steps}, expected less than --steps ({total})."
    left = run.policy_steps
    # The policy's warm-up begins only after the steps that train the critic alone.
    if 0 < left <= run.optimizer.warmup_steps:
        most = f"--steps ({total})"
        if alone:
            most = f"{left}, the --steps that are left after --critic.only-steps"
        yield f"--warmup-steps: found {run.optimizer.warmup_steps}, expected less than {most}."


def policy_complaints(resolved: Resolved) -> Iterator[str]:
    """What policies beside the run's own need, and what they cannot share."""
    run = resolved.run
    shared = {
        "--reference.refresh-every": run.reference.refresh_every,
        "--value-loss": resolved.value_loss and resolved.value_loss.name,
        "--model-hook": resolved.model_hooks and resolved.model_hooks[0].name,
        **{flag_name(name): getattr(run.loss, name) for name in REPLAYS},
    }
    config = resolved.generator.config
    advice = config.policy_advice if resolved.samples and isinstance(config, GeneratorConfig) else None
    for name in run.policies:
        found = f"--policy.{name}: found a further policy"
        if resolved.trains_on is not TrainsOn.ROLLOUTS:
            yield f"{found}, but --algo {resolved.algorithm} trains on responses of the data; leave it out."
        for flag, value in shared.items():
            if value:
                yield f"{found}, but {flag} {str(value).lower()} is of one policy alone; leave one out."
        peak = run.of_policy(name).optimizer.lr
        if run.optimizer.min_lr > peak:
            yield f"--min-lr: found {run.optimizer.min_lr:g}, expected at most --policy.{name}.lr ({peak:g})."
        if advice:
            yield f"{found}, but the generator {resolved.generator.name!r} asks none by its name; {advice}."


def role_table_complaints(resolved: Resolved) -> Iterator[str]:
    """Fields of a role that the run does not have, or of a layout that the policy's workers cannot hold."""
    config, roles = resolved.trainer.config, resolved.roles
    for role, fields in resolved.role_fields.items():
        flag = flag_name(f"{role}.{config.table}.{next(iter(fields))}")
        if role not in roles:
            yield f"{flag}: the run has no {role}; leave it out."
        elif role == REFERENCE and resolved.run.reference.placement == "swapped":
            yield f"{flag}: the reference borrows the policy's model by --reference.placement swapped."
        elif not roles[role].ranks:
            yield from config.beside_complaints(role, resolved.trainer_fields, fields)


def role_rank_complaints(resolved: Resolved) -> Iterator[str]:
    """The ranks of roles with workers of their own.

    They must hold whole models. And each of the role's models must get the samples of a whole number of the
    policy's models, or the other way round, so that results find their samples.
    """
    config = resolved.trainer.config
    policies = resolved.run.ranks // config.model_ranks(resolved.trainer_fields)
    for role, table in resolved.roles.items():
        if not (ranks := table.ranks):
            continue
        found = f"--{role}.ranks: found {ranks}"
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


def distill_complaints(resolved: Resolved, registry: Registry) -> Iterator[str]:
    """A teacher that is missing, that nothing reads, or that cannot give what is read."""
    run = resolved.run
    readers = _readers(resolved, Input.TEACHER_LOG_PROBS)
    readers += ["--distill-coef"] if run.kl.distill_coef else []
    model, urls = run.teacher.model, run.scoring_urls
    chosen = [f"--teacher.model: found {model!r}"] if model else []
    chosen += [f"{flag}: found {url!r}" for flag, url in urls.items()]
    if chosen and not readers:
        ways = [*_recipes_reading(registry, Input.TEACHER_LOG_PROBS), "--distill-coef"]
        yield f"{chosen[0]}, but nothing reads the teacher{to_add(ways)}."
    if readers and not chosen:
        yield (
            f"--teacher.model: found none, but {readers[0]} compares with a teacher; add --teacher.model "
            "PATH or --teacher.url URL."
        )
    if model and urls:
        yield f"{chosen[0]}, and {chosen[1]}; expected one teacher."
    if not model:
        yield from unread(run, ["teacher.ranks"], "no train worker has a teacher; add --teacher.model")
    if urls:
        yield from _url_complaints(run, resolved.loss.config.top_tokens)


def _url_complaints(run: RunConfig, top: TopTokens | None) -> Iterator[str]:
    """Addresses that are none, and what an engine cannot give."""
    for flag, url in run.scoring_urls.items():
        parts = urlsplit(url)
        if not (parts.scheme in ("http", "https") and parts.netloc) and frozen_name(url) is None:
            yield f"{flag}: found {url!r}, expected a URL such as http://127.0.0.1:30000."
    flag, url = next(iter(run.scoring_urls.items()))
    if run.sampling.temperature != 1.0:
        yield (
            f"--temperature: found {run.sampling.temperature:g}, but the engine of {flag} scores at "
            "temperature 1; expected 1, or --teacher.model."
        )
    if top is not None:
        yield (
            f"{flag}: found {url!r}, but the loss compares {top.count} tokens of each position, and an "
            "engine scores the sampled token alone; use --teacher.model."
        )


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
    parts = [(entry.record.name, config) for entry, config in registry.configs(kind)]
    return [name for name, config in parts if issubclass(config, BatchConfig) and column in config.needs]
