"""Do the parts fit each other, and the origin of the responses (the policy's rollouts, or the data)?"""

from collections.abc import Iterable, Iterator, Sequence

from rlcore.api.columns import Input, TrainsOn
from rlcore.api.marks import Mark
from rlcore.api.part import Part
from rlcore.api.part_config import Neighbor, PartConfig
from rlcore.api.run_config import RunConfig
from rlcore.compose.resolved import Resolved
from rlcore.compose.sentences import unread
from rlcore.config.fields import marked


def data_complaints(resolved: Resolved) -> Iterator[str]:
    """Parts and settings that do not suit the recipe's kind of training: on rollouts, on responses or on
    pairs.
    """
    run, on = resolved.run, resolved.trains_on
    for kind, part in resolved.batch_parts():
        if on not in part.config.trains_on:
            wanted = " or ".join(sorted(part.config.trains_on))
            yield (
                f"--{kind.replace('_', '-')}: found {part.name!r}, which trains on {wanted}, but --algo "
                f"{resolved.algorithm} trains on {on}; choose another one."
            )
    if on is TrainsOn.ROLLOUTS:
        return
    recipe = f"--algo {resolved.algorithm} trains on {on}"
    if run.data.group_size != on.per_prompt:
        found = f"--group-size: found {run.data.group_size}"
        yield f"{found}, but {recipe}, {on.per_prompt} to a prompt; leave it out."
    yield from unread(run, marked(RunConfig, Mark.SAMPLING), f"{recipe} and samples none; leave it out")
    if on is TrainsOn.PAIRS and run.loss.normalizer != "per_rollout":
        yield (
            f"--normalizer: found {run.loss.normalizer}, but the loss of --algo {resolved.algorithm} is a "
            "mean over pairs; expected per_rollout."
        )


def part_complaints(resolved: Resolved) -> Iterator[str]:
    """The objections of each part's config (`PartConfig.complaints`)."""
    chosen = resolved.group_parts()
    neighbors = [Neighbor(kind=kind, name=part.name, config=part.config) for kind, part in chosen]
    hooks = (*resolved.model_hooks, *resolved.trackers, *resolved.callbacks)
    others = (resolved.generator, resolved.cluster, *hooks)
    yield from complaints_of((*(part for _, part in chosen), *others), resolved.run, neighbors)


def complaints_of(parts: Iterable[Part], run: RunConfig, neighbors: Sequence[Neighbor] = ()) -> Iterator[str]:
    """The objections of the configs of `parts`, as far as they may object."""
    for part in parts:
        if isinstance(part.config, PartConfig):
            yield from part.config.complaints(part.name, run, neighbors)


def group_complaints(resolved: Resolved) -> Iterator[str]:
    """A part that compares the samples of a prompt needs a group of at least two."""
    size = resolved.run.data.group_size
    for kind, part in resolved.group_parts():
        need = part.config.needed_group_size()
        if size < need:
            yield (
                f"--group-size: found {size}, but {kind} {part.name!r} compares the samples of a prompt; "
                f"expected at least {need}."
            )


def advantage_complaints(resolved: Resolved) -> Iterator[str]:
    """Advantages that are all 0 for a loss that needs them, and advantages for a loss that ignores them."""
    run, advantage, loss = resolved.run, resolved.advantage, resolved.loss
    if advantage is None:
        return
    if loss.config.reads_advantages:
        if advantage.config.idle and not run.kl.distill_coef:
            yield (
                f"--advantage: found {advantage.name!r}, whose advantages are all 0, but loss {loss.name!r} "
                "learns by them; add --distill-coef, or choose another one."
            )
        return
    reason = f"loss {loss.name!r} reads no advantages"
    if not advantage.config.idle:
        yield (
            f"--advantage: found {advantage.name!r}, but {reason}, so that the rewards would do nothing; "
            "choose another loss, or the recipe of this one."
        )
    yield from unread(run, ("whiten_advantages", "distill_coef"), f"{reason}; leave it out")
    if run.kl.kl_coef and run.kl.kl_place == "reward":
        yield f"--kl-place: found reward, but {reason}; expected loss."


def correction_complaints(resolved: Resolved) -> Iterator[str]:
    """Two corrections that multiply by the same ratio."""
    weighing = [part.name for part in resolved.corrections if part.config.weighs]
    if len(weighing) > 1:
        yield (
            f"--correction: found {weighing[0]!r} and {weighing[1]!r}, which weigh by the same ratio, so "
            "that it would count twice; expected one of them."
        )


def reward_complaints(resolved: Resolved) -> Iterator[str]:
    """Settings of the rewards, and of a KL term that is not there."""
    run, names = resolved.run, [part.name for part in resolved.rewards]
    for name in run.rewards.rank_reward:
        if name not in names:
            yield f"--rank-reward: found {name!r}, expected a reward of the run ({', '.join(names)})."
    if run.rewards.rank_reward and run.data.group_size < 2:
        yield f"--group-size: found {run.data.group_size}, but --rank-reward compares siblings; expected 2."
    if run.rewards.rank_reward and Input.GREEDY_REWARD in resolved.needs:
        yield (
            f"--rank-reward: found {run.rewards.rank_reward[0]!r}, but --algo {resolved.algorithm} compares "
            "scores with that of a greedy response, which has no siblings; leave it out."
        )
    if not run.kl.kl_coef:
        yield from unread(run, ("kl_place", "kl_estimator"), "there is no KL; add --kl-coef")
