"""What the ranks of a process group say together: the sums of a step, and a failure of one of them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from rlcore import CheckpointError, LossResult, disk_sentence
from rlcore_toolkit.process_group import current_device


def rank_sums(
    batches: Sequence[dict[str, Tensor]], device: torch.device, *, counts: bool = True
) -> dict[str, float]:
    """The sums over micro-batches and ranks, on every rank; in rank order, so reproducible.

    `batches`: name → scalar, of each micro-batch. `device`: where they are. `counts`: False for a rank whose
    numbers another one has too.
    """
    mine: dict[str, float] = {}
    names = list(dict.fromkeys(name for metrics in batches for name in metrics))
    if names:
        zero = torch.zeros((), device=device)
        rows = [[metrics.get(name, zero).detach().to(torch.float64) for name in names] for metrics in batches]
        totals = torch.stack([value for row in rows for value in row]).view(len(rows), len(names)).sum(0)
        mine = dict(zip(names, totals.tolist(), strict=True))
    if dist.get_world_size() == 1:
        return mine
    gathered: list[dict[str, float] | None] = [None] * dist.get_world_size()
    # As objects: a rank without response tokens knows no names of metrics.
    dist.all_gather_object(gathered, mine if counts else None)
    whole: dict[str, float] = {}
    for part in gathered:
        for name, value in (part or {}).items():
            whole[name] = whole.get(name, 0.0) + value
    return whole


def rank_most(count: int, group: dist.ProcessGroup | None = None) -> int:
    """The largest `count` of the ranks of `group`."""
    if dist.get_world_size(group) == 1:
        return count
    most = torch.tensor(count, device=current_device())
    dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    return int(most)


def loss_sums(output: Tensor, score: Callable[[], LossResult]) -> tuple[Tensor, dict[str, Tensor]]:
    """What a micro-batch is differentiated by, and its part of `rank_sums`.

    `output` [n, …]: of its response tokens; `score`: their loss, asked for where there are any. The loss goes
    by "", a name that no metric can have.
    """
    total = output[:0].sum()  # an exact zero keeps the graph whole for every loss
    if not len(output):
        return total, {}
    result = score()
    total = total + result.total
    return total, {"": total.detach().clone(), **result.metrics}


def write_together(write: Callable[[], None], folder: Path, group: dist.ProcessGroup | None = None) -> None:
    """Call `write` on every rank of `group`; an OSError on any becomes a CheckpointError on all."""
    outcome: str | None = None
    try:
        write()
    except OSError as error:
        outcome = disk_sentence(folder, error)
    outcomes: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(outcomes, outcome, group=group)
    failed = next((sentence for sentence in outcomes if sentence is not None), None)
    if failed is not None:
        raise CheckpointError(failed)
