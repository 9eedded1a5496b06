"""Checks of the critic and the reference: there where something needs them, and only there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlcore.api.inputs import Input
from rlcore.api.records import Kind
from rlcore.compose.resolved import Resolved
from rlcore.compose.sentences import unread, unread_flags
from rlcore.compose.suggestions import Suggestions
from rlcore.config.layers import Setting


def role_complaints(
    resolved: Resolved, settings: Mapping[str, Setting], suggestions: Suggestions
) -> Iterator[str]:
    """The critic and the reference: there where something needs them, and only there."""
    run, needs = resolved.run, resolved.needs
    readers = [
        f"{kind} {part.name!r}" for kind, part in resolved.batch_parts() if Input.VALUES in part.config.needs
    ]
    if readers and resolved.value_loss is None:
        found = f"--value-loss: found none, but {readers[0]} reads a critic's values"
        yield f"{found}{suggestions.parts(Kind.VALUE_LOSS)}."
    if resolved.value_loss is not None and not readers:
        found = f"--value-loss: found {resolved.value_loss.name!r}, but nothing reads a critic's values"
        ways = suggestions.parts_reading(Kind.ADVANTAGE, Input.VALUES, "--value-loss none")
        yield f"{found}{ways}."
    if not readers:
        reason = f"there is no critic{suggestions.recipes_with(Kind.VALUE_LOSS)}"
        own = ("critic_model", "critic_warmup_steps", "critic_lr_schedule")
        yield from unread(run, own, reason)
        numbers = ("critic_lr_warmup_steps", "critic_min_lr", "critic_weight_decay", "critic_clip_grad")
        yield from unread_flags(settings, ("critic_lr", "critic_ranks", *numbers), reason)
        if run.critic.critic_workers == "separate":
            yield f"--critic-workers: found separate, but {reason}."
    if Input.REFERENCE_LOG_PROBS not in needs:
        names = ("reference_model", "reference_refresh_every", "kl_unbiased")
        reason = "nothing reads the reference; add --kl-coef"
        yield from unread(run, names, reason)
        yield from unread_flags(settings, ("kl_estimator", "kl_place"), reason)
    if run.kl.reference_placement == "swapped" and Input.REFERENCE_LOG_PROBS not in needs:
        yield "--reference-placement: found swapped, but nothing reads the reference; add --kl-coef."
    if run.kl.kl_unbiased and run.kl.kl_place != "loss":
        yield f"--kl-unbiased: found true with --kl-place {run.kl.kl_place}, expected --kl-place loss."
    least, most = run.critic.optimizer(run.optimizer).min_lr, run.critic.critic_lr
    if readers and least > most:
        flag = "--min-lr" if run.critic.critic_min_lr is None else "--critic-min-lr"
        yield f"{flag}: found {least:g}, expected at most --critic-lr ({most:g})."
