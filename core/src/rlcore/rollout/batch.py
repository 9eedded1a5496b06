"""Groups to a `TrainBatch`, and its shares for the data-parallel ranks."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import Column, Per
from rlcore.api.errors import PluginError
from rlcore.api.packed import Packed, PackedFlags, PackedFloats, PackedInts
from rlcore.api.types import Group, RewardStatus, Sample
from rlcore.learning.minibatch import assign_minibatches
from rlcore.rollout.columns import extra_columns, metadata_columns

_ROWS_AT_ONCE = 64
"""Few enough that a copy of them is small, and enough that the overhead for short rows is small."""


def to_batch(
    groups: Sequence[Group],
    *,
    minibatches: int,
    version: int,
    kept_caches: bool = False,
    metadata: Sequence[str] = (),
    columns: Mapping[str, Column] = MappingProxyType({}),
    policies: Sequence[str] = (),
) -> TrainBatch:
    """All samples of `groups`, which are scored, in order, for a trainer whose weights are `version`.

    Per token, float32: `loss_mask`; `rollout_log_probs`; `rewards`, where a scalar reward sits on the last
    live token, and rewards of tokens or turns on live ones; `fresh`, 1 where trainer and engine computed the
    log-prob with the same weights. These are tokens sampled with `version`. Where engines have `kept_caches`
    through publications, no earlier token of the sample may be of another version.

    Per sample: `reward` float32; int64 `position` (0 … B - 1), `group` and `rollout` (numbered from 0),
    `minibatch` (`rlcore.learning.minibatch`) and `version` (of the first token). Where a sample has no score,
    `scored` int64 is 0 for it and its reward is 0. Where there are `policies` beside the run's own, `policy`
    int64 is 0 for that, and i for the i-th of them.

    Extras of the samples become columns as `columns` declares them (`rlcore.rollout.columns`). `metadata`:
    keys of the prompts' metadata that become per-sample columns.

    Samples without spans come from the data. They have no log-probs, rewards, version or extras. `chosen`
    int64 is 1 for the first response to a prompt and 0 for the second, and each group is a `unit`.
    """
    samples = [sample for group in groups for sample in group.samples]
    is_sampled = not samples or bool(samples[0].spans)
    prompts = np.array([len(sample.prompt_ids) for sample in samples], dtype=np.int64)
    responses = np.array([len(sample.response_ids) for sample in samples], dtype=np.int64)
    count = int(responses.sum())
    mask = flat(PackedFlags, (sample.loss_mask for sample in samples), count, np.float32)
    group = torch.from_numpy(np.repeat(np.arange(len(groups)), [len(group.samples) for group in groups]))
    rollout = _dense(sample.rollout_id for sample in samples)
    per_token = {"loss_mask": torch.from_numpy(mask)}
    numbers = {name: number for number, name in enumerate(["", *policies])}
    policy = torch.tensor([numbers.get(sample.policy, 0) for sample in samples]) if policies else None
    per_sample = {
        "position": torch.arange(len(samples)),
        "group": group,
        "rollout": rollout,
        # The two responses of a pair are rollouts of their own, and must be trained on together.
        "minibatch": assign_minibatches(rollout if is_sampled else group, minibatches, policy),
        **({} if policy is None else {"policy": policy}),
        **metadata_columns(samples, metadata),
    }
    extras: Mapping[Per, Mapping[str, Tensor]] = {}
    if is_sampled:
        scored = [sample.score is not None for sample in samples]
        statuses = {sample.reward_status for sample in samples if sample.score is None}
        assert statuses <= {RewardStatus.EXEMPT}, "the producer drops groups with an unscored sample"
        assert all(sample.spans for sample in samples), "the producer refuses samples without spans"
        reward = np.array([sample.score.value if sample.score else 0 for sample in samples], np.float32)
        log_probs = flat(PackedFloats, (sample.log_probs for sample in samples), count, np.float32)
        extras = extra_columns(samples, columns, {*metadata})
        per_token |= {
            "rollout_log_probs": torch.from_numpy(log_probs),
            "rewards": torch.from_numpy(_token_rewards(samples, responses, mask, reward)),
            "fresh": torch.from_numpy(_fresh(samples, version, kept_caches)),
        }
        per_sample |= {
            "reward": torch.from_numpy(reward),
            "version": torch.tensor([sample.spans[0].version for sample in samples], dtype=torch.int64),
            **({} if all(scored) else {"scored": torch.tensor(scored, dtype=torch.int64)}),
        }
    else:
        per_sample |= {"chosen": torch.tensor([int(sample.index == 0) for sample in samples]), "unit": group}
    return TrainBatch(
        tokens=_tokens(samples, int(prompts.sum()) + count),
        prompt_lengths=torch.from_numpy(prompts),
        response_lengths=torch.from_numpy(responses),
        per_token={**per_token, **extras.get("token", {})},
        per_sample={**per_sample, **extras.get("sample", {})},
        per_input=extras.get("input", {}),
        per_item=extras.get("item", {}),
        columns=columns,
    )


def split(batch: TrainBatch, ranks: int) -> list[TrainBatch]:
    """One share for each data-parallel rank. Its samples are in the order of their `position`.

    Within each mini-batch the shares have nearly equal costs (`TrainBatch.costs`). With fewer units than
    ranks, some are empty.
    """
    if ranks == 1:
        return [batch]
    units, costs, minibatch = batch.units(), batch.costs, batch.per_sample["minibatch"].tolist()
    rows: list[list[int]] = [[] for _ in range(ranks)]
    for number in sorted(set(minibatch)):
        # Each mini-batch by itself, so that all ranks take each optimizer step for about as long.
        members = [unit for unit in units if minibatch[unit[0]] == number]
        loads = [sum(costs[row] for row in unit) for unit in members]
        for rank, share in enumerate(even_shares(loads, ranks)):
            rows[rank] += [row for place in share for row in members[place]]
    return [batch.select(sorted(share)) for share in rows]


def even_shares(loads: Sequence[float], shares: int) -> list[list[int]]:
    """The rows of each share, ascending, so that the shares have nearly equal sums of `loads`; deterministic.

    Greedy: the heaviest remaining row goes to the lightest share, or to the one with the fewest rows among
    equals.
    """
    rows: list[list[int]] = [[] for _ in range(shares)]
    heap = [(0.0, 0, share) for share in range(shares)]
    for row in sorted(range(len(loads)), key=lambda row: (-loads[row], row)):
        load, count, share = heap[0]
        rows[share].append(row)
        heapq.heapreplace(heap, (load + loads[row], count + 1, share))
    return [sorted(share) for share in rows]


def _tokens(samples: Sequence[Sample], count: int) -> Tensor:
    """Prompt and response of each sample, int64."""
    # Siblings share the tuple of their prompt, which is packed once.
    prompts = {id(sample.prompt_ids): sample.prompt_ids for sample in samples}
    packed = {key: PackedInts(ids) for key, ids in prompts.items()}
    rows = chain.from_iterable((packed[id(sample.prompt_ids)], sample.response_ids) for sample in samples)
    return torch.from_numpy(flat(PackedInts, rows, count, np.int64))


def _dense(names: Iterable[str]) -> Tensor:
    """0, 1, 2 … in order of first appearance."""
    numbers: dict[str, int] = {}
    # `len` counts the names before this one, for it is called first.
    return torch.tensor([numbers.setdefault(name, len(numbers)) for name in names], dtype=torch.int64)


def _fresh(samples: Sequence[Sample], version: int, kept_caches: bool) -> NDArray[np.float32]:
    runs: list[tuple[bool, int]] = []
    for sample in samples:
        # Keys and values of older weights reach into all later tokens.
        if kept_caches and len(sample.versions) > 1:
            runs.append((False, len(sample.response_ids)))
        else:
            runs += [(sampled == version, length) for sampled, length in sample.version_runs]
    is_fresh, lengths = zip(*runs, strict=True) if runs else ((), ())
    return np.repeat(np.array(is_fresh, dtype=np.float32), np.array(lengths, dtype=np.int64))


def _token_rewards(
    samples: Sequence[Sample],
    responses: NDArray[np.int64],
    mask: NDArray[np.float32],
    reward: NDArray[np.float32],
) -> NDArray[np.float32]:
    rewards = np.zeros_like(mask)
    ends = np.cumsum(responses)
    live = np.array([_live_end(sample) for sample in samples], dtype=np.int64)
    has_live = live > 0
    # At the last live token of each sample that has one.
    rewards[(ends - responses + live - 1)[has_live]] = reward[has_live]
    for number, sample in enumerate(samples):
        if sample.score is not None and sample.score.per_token is not None:
            if len(sample.score.per_token) != responses[number]:
                raise PluginError(
                    f"The reward gave {len(sample.score.per_token)} per-token values to sample"
                    f" {sample.rollout_id}, which has {responses[number]} response tokens."
                )
            tokens = slice(ends[number] - responses[number], ends[number])
            rewards[tokens] = _on_live(np.asarray(sample.score.per_token, dtype=np.float32), mask[tokens])
    return rewards


def _live_end(sample: Sample) -> int:
    """The number of response tokens up to the last live one; 0 without any."""
    # Without the zeros at its end, the mask ends with the last live token.
    return len(PackedFlags(sample.loss_mask).to_bytes().rstrip(b"\0"))


def _on_live(rewards: NDArray[np.float32], mask: NDArray[np.float32]) -> NDArray[np.float32]:
    """Move rewards to sampled tokens: one on a tool's token goes to the last sampled token before it, or to
    the first.

    Without sampled tokens, all rewards are 0.
    """
    live = np.flatnonzero(mask)
    credited = np.zeros_like(rewards)
    if len(live):
        place = (np.searchsorted(live, np.arange(len(rewards)), side="right") - 1).clip(min=0)
        np.add.at(credited, live[place], rewards)
    return credited


def flat(
    kind: type[Packed[Any]], rows: Iterable[Iterable[float]], count: int, dtype: type[np.generic]
) -> NDArray[Any]:
    """The `count` numbers of all `rows`, of `kind` or packed as that, one after the other, as `dtype`."""
    values, start, rest = np.empty(count, dtype=dtype), 0, iter(rows)
    while chunk := tuple(islice(rest, _ROWS_AT_ONCE)):
        piece = np.frombuffer(kind.joined(chunk), dtype=kind.code)
        values[start : start + len(piece)] = piece
        start += len(piece)
    assert start == count, f"the rows hold {start} numbers"
    return values
