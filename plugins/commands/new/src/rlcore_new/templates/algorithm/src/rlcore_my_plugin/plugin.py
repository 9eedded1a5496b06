"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Algorithm, hookimpl


@hookimpl
def rlcore_algorithms() -> Iterable[Algorithm]:
    """The recipe: names of installed parts, and defaults. A flag overrides each of them."""
    yield Algorithm(
        name="my_plugin",
        summary="GRPO with a higher upper clip, on groups of 16",
        paper="https://arxiv.org/abs/2402.03300",
        parts={"advantage": "grpo", "loss": "ppo_clip", "filter": []},
        settings={"group_size": 16, "normalizer": "per_token"},
        tables={"loss": {"clip_high": 0.28}},
    )
