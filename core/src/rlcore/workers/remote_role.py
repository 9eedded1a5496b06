"""How a train worker reaches a role on workers of its own, which may be laid out in another way.

Each data-parallel rank of the policy has a share of every batch; each of the role needs one. Where the role
has fewer of them, one gets the shares of several; where it has more, a share is divided among several.
All ranks of the role must work at once, and one of them may be asked by several ranks of the policy. So a
round has two parts: first all shares are offered, then the results are asked for.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup

from rlcore.api.batch import TrainBatch
from rlcore.api.cluster import Actor
from rlcore.api.trainer import StepResult, ValueFunction

Peers = Sequence[Sequence["Actor"]]
"""For each data-parallel rank of the role that a train worker asks: the workers to ask."""


def peers_of(policy: Sequence[int], role: Sequence[int]) -> list[list[list[int]]]:
    """The role's ranks that each of the policy's asks, as `Peers` has them.

    `policy`, `role`: the data-parallel rank of each of their ranks. At least one rank of the policy asks
    each rank of the role. Each rank of the policy asks at least one rank of every data-parallel rank of the
    role that serves its own.
    """
    shares, own = max(policy) + 1, max(role) + 1
    assert shares % own == 0 or own % shares == 0, "checked before the run"
    held = [[rank for rank, data_rank in enumerate(role) if data_rank == number] for number in range(own)]
    asked = []
    for rank, number in enumerate(policy):
        first = number * own // shares
        serving = held[first : first + max(1, own // shares)]
        # Ranks of one data rank divide those that they ask among themselves. If they are more than these,
        # several ask the same one.
        place, width = policy[:rank].count(number), policy.count(number)
        asked.append([ranks[place::width] or [ranks[place % len(ranks)]] for ranks in serving])
    return asked


class RemoteRole:
    """The model of a train worker whose role is elsewhere: each call is a round there.

    It has the methods of a `Scorer` and of a `ValueModel`; the role there has those of one of them.
    """

    def __init__(self, number: int, group: ProcessGroup | None, limit_s: float) -> None:
        """`number`: of this data-parallel rank, in `group`. `limit_s`: for each call."""
        self._number = number
        self._group = group
        self._limit_s = limit_s
        self._peers: Peers = ()
        self._round = 0

    def connect(self, peers: Peers) -> None:
        """Say whom to ask, before the first call."""
        self._peers = peers

    def forward(self, batch: TrainBatch, **options: Any) -> dict[str, Tensor]:
        """Implements `Scorer.forward`."""
        return self._columns(batch, "forward", options)

    def values(self, batch: TrainBatch, *, tokens_per_rank: int) -> Tensor:
        """Implements `ValueModel.values`."""
        return self._columns(batch, "values", {"tokens_per_rank": tokens_per_rank})["values"]

    def fit(self, batch: TrainBatch, loss: ValueFunction, *, tokens_per_rank: int) -> StepResult:
        """Implements `ValueModel.fit`. The loss travels with the call."""
        options = {"loss": loss, "tokens_per_rank": tokens_per_rank}
        # All of them took the same step, so the first result stands for all.
        result: StepResult = self._round_of(batch, self._shares(batch), "fit", options)[0]
        return result

    def _columns(self, batch: TrainBatch, method: str, options: Mapping[str, Any]) -> dict[str, Tensor]:
        """What the role gives for each response token, in the order of `batch`."""
        import torch

        shares = self._shares(batch)
        count = int(batch.response_lengths.sum())
        places = torch.arange(count).split(batch.response_lengths.tolist())
        parts = self._round_of(batch, shares, method, options)
        columns = {name: part.new_empty(count, *part.shape[1:]) for name, part in parts[0].items()}
        for rows, answer in zip(shares, parts, strict=True):
            for name, part in answer.items() if rows else ():
                columns[name][torch.cat([places[row] for row in rows])] = part
        return columns

    def _shares(self, batch: TrainBatch) -> list[list[int]]:
        """The rows for each data-parallel rank of the role that serves this one."""
        from rlcore.rollout.batch import even_shares

        return even_shares(batch.costs, len(self._peers))

    def _round_of(
        self, batch: TrainBatch, shares: Sequence[Sequence[int]], method: str, options: Mapping[str, Any]
    ) -> list[Any]:
        """The role's result for each of `shares`. Collective over `group`."""
        import torch.distributed as dist

        self._round += 1
        batch = batch.reaching("all", "share")
        parts = [batch] if len(shares) == 1 else [batch.select(rows) for rows in shares]
        offers = [(peer, part) for peers, part in zip(self._peers, parts, strict=True) for peer in peers]
        with ThreadPoolExecutor(len(offers)) as threads:  # all of them must answer, not one after another
            offered = [threads.submit(self._ask, peer, "offer", part) for peer, part in offers]
            for call in offered:
                call.result()
            # All shares of the round must be there before the first rank of the role works on them.
            if self._group is not None and self._group.size() > 1:
                dist.barrier(self._group)
            calls = [
                [threads.submit(self._ask, peer, "answer", method, options) for peer in peers]
                for peers in self._peers
            ]
            results = [[call.result() for call in answers] for answers in calls]
        return [same[0] for same in results]  # the ranks of one model answer alike

    def _ask(self, peer: Actor, method: str, *arguments: Any) -> Any:
        return peer.ask(method, self._round, self._number, *arguments, limit_s=self._limit_s)
