"""A role on workers of its own: whom each rank asks, and what it gets, whatever the two layouts are."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from rlcore import Column, LossResult, StepResult, TrainBatch, WorkerError
from rlcore.learning.gather import joined
from rlcore.workers.remote_role import RemoteRole, peers_of
from rlcore.workers.role_worker import RoleWorker
from rlcore.workers.train_worker import WorkerSetup
from rlcore_testing.items import check_same, with_items


@pytest.mark.parametrize(
    ("policy", "critic", "expected"),
    [
        ([0, 1], [0, 1], [[[0]], [[1]]]),
        ([0, 0], [0], [[[0]], [[0]]]),
        ([0], [0, 0], [[[0, 1]]]),
        ([0, 0, 1, 1], [0, 0, 1, 1], [[[0]], [[1]], [[2]], [[3]]]),
        ([0, 1, 2, 3], [0, 1], [[[0]], [[0]], [[1]], [[1]]]),
        ([0, 1], [0, 1, 2, 3], [[[0], [1]], [[2], [3]]]),
        ([0, 1, 0, 1], [0, 0, 0], [[[0, 2]], [[0, 2]], [[1]], [[1]]]),
    ],
)
def test_whom_each_rank_asks(policy: list[int], critic: list[int], expected: list[list[list[int]]]) -> None:
    assert peers_of(policy, critic) == expected


class TokenValues:
    """A model whose values and scores are the response tokens; a step counts the samples."""

    def __init__(self) -> None:
        self.batches: list[TrainBatch] = []

    def values(self, batch: TrainBatch, *, tokens_per_rank: int) -> Tensor:
        """Of each response token, itself."""
        self.batches.append(batch)
        lengths = zip(batch.prompt_lengths.tolist(), batch.response_lengths.tolist(), strict=True)
        kept = [k for prompt, response in lengths for k in [False] * prompt + [True] * response]
        return batch.tokens[torch.tensor(kept, dtype=torch.bool)].float()

    def forward(self, batch: TrainBatch, *, top: int, chosen: str | None = None) -> dict[str, Tensor]:
        """Each response token as its log-prob, and `top` times as the likeliest ones."""
        values = self.values(batch, tokens_per_rank=9)
        assert chosen is None or len(batch.per_token[chosen]) == len(values)
        return {"log_probs": values, "top_ids": values.long()[:, None].repeat(1, top)}

    def fit(self, batch: TrainBatch, loss: Any, *, tokens_per_rank: int) -> StepResult:
        """`loss`: the samples of this rank."""
        self.batches.append(batch)
        return StepResult(loss=float(len(batch)), metrics={}, grad_norm=0.0, lr=0.0, finite=True)


class Here:
    """An actor of this process, whose methods run one after another, as an actor's do."""

    def __init__(self) -> None:
        self.model = TokenValues()
        self._worker = RoleWorker.__new__(RoleWorker)
        vars(self._worker).update(_model=self.model, _rounds={})
        self._lock = threading.Lock()

    def ask(self, method: str, *arguments: Any, limit_s: float) -> Any:
        """As `Actor.ask`."""
        with self._lock:
            return getattr(self._worker, method)(*arguments)

    @property
    def rounds(self) -> int:
        """Those that are kept."""
        return len(self._worker._rounds)


def _batch(lengths: Sequence[int]) -> TrainBatch:
    responses = torch.tensor(lengths, dtype=torch.int64)
    total = int(responses.sum()) + len(lengths)
    batch = TrainBatch(
        tokens=torch.arange(total),
        prompt_lengths=torch.ones_like(responses),
        response_lengths=responses,
        per_token={"loss_mask": torch.ones(total - len(lengths))},
        per_sample={"position": torch.arange(len(lengths))},
        per_input={"route": torch.arange(total)},
        columns={"route": Column(per="input", reach="policy")},
    )
    return with_items(batch, [2 * (row % 2) for row in range(len(lengths))])


def _nothing(values: Tensor, batch: TrainBatch) -> LossResult:
    return LossResult(total=values.sum())


@pytest.mark.parametrize(
    ("policy", "critic"),
    [([0, 0], [0]), ([0], [0, 0]), ([0], [0, 1]), ([0, 0], [0, 1, 0, 1]), ([0], [0])],
)
def test_values_come_back_in_order_and_every_rank_works_once_a_round(
    policy: list[int], critic: list[int]
) -> None:
    """Also where one train worker is several rounds ahead of its peer."""
    workers = [Here() for _ in critic]
    peers = peers_of(policy, critic)
    for number, worker in enumerate(workers):
        worker.ask("expect", sum(number in ranks for mine in peers for ranks in mine), limit_s=1)
    remotes = []
    for number, mine in zip(policy, peers, strict=True):
        remotes.append(RemoteRole(number, None, 5.0))
        asked: Any = [[workers[rank] for rank in ranks] for ranks in mine]
        remotes[-1].connect(asked)
    batches = [_batch([3, 1, 4, 2]), _batch([1]), _batch([2, 2, 2])]
    expected = [TokenValues().values(batch, tokens_per_rank=9) for batch in batches]

    def run(remote: RemoteRole) -> list[Tensor]:
        found = [remote.values(batch, tokens_per_rank=9) for batch in batches]
        remote.fit(batches[0], _nothing, tokens_per_rank=9)
        scores = remote.forward(batches[0], top=2, chosen="loss_mask")
        assert torch.equal(scores["log_probs"], found[0])
        assert torch.equal(scores["top_ids"], found[0].long()[:, None].expand(-1, 2))
        return found

    if len(set(critic)) == len(critic):  # ranks that need not work together
        answers = [run(remote) for remote in remotes]
    else:
        with ThreadPoolExecutor(len(remotes)) as threads:
            answers = list(threads.map(run, remotes))
    for found in answers:
        for values, wanted in zip(found, expected, strict=True):
            assert torch.equal(values, wanted)
    assert [len(worker.model.batches) for worker in workers] == [5] * len(workers)
    assert [worker.rounds for worker in workers] == [0] * len(workers)
    shares = {number: workers[critic.index(number)].model.batches for number in set(critic)}
    for place, batch in enumerate([*batches, batches[0], batches[0]]):
        kept = joined([batches[place] for batches in shares.values()])
        order = torch.argsort(kept.per_sample["position"]).tolist()
        # Items go where their samples go; what the policy alone reads does not.
        check_same(kept.select(order).reaching("share"), batch.reaching("share"))
        assert kept.columns.keys() == batch.reaching("all", "share").columns.keys()


def test_a_worker_that_does_not_see_the_folder_is_called_by_its_role(tmp_path: Path) -> None:
    worker = object.__new__(RoleWorker)  # its `__init__` sets up the process
    worker._rank = 1
    learner = SimpleNamespace(folder=str(tmp_path / "gone"))
    setup = SimpleNamespace(critic=SimpleNamespace(fields={}), learner=learner)
    with pytest.raises(WorkerError, match=r"^Critic worker 1 on .* does not see the run's folder"):
        worker.start("critic", cast("WorkerSetup", setup), "127.0.0.1", 1)
