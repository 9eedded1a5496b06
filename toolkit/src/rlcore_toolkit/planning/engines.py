"""The engines beside a trainer, as every planner counts them."""

from collections.abc import Mapping

from rlcore_toolkit.planning.planner import Machines, Phase

SERVED = "engine's weights"
"""The item of a phase that an engine's weights are."""
CACHE = "KV cache"
"""The item of a phase that its cache is."""
SLEEPS = ("none", "optimizer", "all")
"""Values of `--sleep`: what each moves to the host and back costs time in every step."""
SLEEP_MARKS = {
    "all": ("‡", "with the trainer in host memory while engines generate: --sleep all"),
    "optimizer": (
        "§",
        "with the optimizer's states in host memory while engines generate: --sleep optimizer",
    ),
}
"""Value of `--sleep` → mark and footnote of a layout that has it."""
ENOUGH = 0.5
"""The share of the requests in flight that engines should have room for at once."""
LARGE_SHARE = 0.7
"""The share of a GPU's memory for engines that have it to themselves as they generate (`--sleep all`)."""
BUCKET_MB = 256
"""Megabytes of one message of a publication: the engines' default."""


def generation(
    trainer: Mapping[str, int],
    machines: Machines,
    *,
    weights: int,
    sequence: int,
    asked: int,
    tokens: int,
    share: float | None,
    name: str = "generate",
    is_apart: bool = False,
) -> Phase:
    """With the cache of as many sequences as are asked for, or as there is room for: one at least.

    Bytes: `trainer`, of what stays on the GPU; `weights` of the engine; `sequence`, the cache of one of
    `tokens` tokens. `share`: of the GPU's memory that the engine takes; None: what is left.
    """
    held = {**trainer, SERVED: weights}
    room = machines.usable - sum(held.values())
    if share is not None:
        room = min(room, int(share * machines.memory) - weights)
    count = max(1, min(asked, room // sequence))
    return Phase(
        name=name,
        items={**held, CACHE: count * sequence},
        limit=sum(held.values()) + room,
        note=f"the KV cache holds {count} of {asked} sequences of {tokens} tokens at once",
        room=min(1.0, count / asked),
        is_apart=is_apart,
    )
