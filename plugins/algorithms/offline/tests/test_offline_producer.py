"""The producer of given responses: order, state, batches and metrics."""

from typing import Any

import pytest
from rollout_world import Digits

from rlcore import CheckpointError, DataOptions, Prompt, PromptTokenizer, RunConfig
from rlcore.data.cursors import PromptCursor
from rlcore.rollout.batch import split, to_batch
from rlcore_offline.producer import OfflineProducer
from rlcore_offline.responses import ResponseEncoder

RUN = RunConfig(data=DataOptions(prompts_per_step=4))


def given_producer(*, pairs: bool) -> OfflineProducer:
    """5 prompts, 4 a step."""
    prompts = [
        Prompt(prompt_id=f"p{i}", text=f"{i}", label=f"{i}", responses=(f"1{i}", f"2{i}{i}")[: 1 + pairs])
        for i in range(5)
    ]
    encoder = ResponseEncoder(PromptTokenizer(Digits(), 3), 3)
    return OfflineProducer(RUN, PromptCursor(prompts, RUN.seed), encoder)


async def steps(producer: OfflineProducer, done: int, last: int) -> list[Any]:
    return [rollout async for rollout in producer.run(done, last)]


async def test_each_prompt_once_an_epoch_and_resumed_in_its_place() -> None:
    whole = await steps(given_producer(pairs=True), 0, 5)
    seen = [group.prompt.prompt_id for rollout in whole for group in rollout.groups]
    assert [sorted(seen[start : start + 5]) for start in (0, 5, 10, 15)] == [
        ["p0", "p1", "p2", "p3", "p4"]
    ] * 4
    first, second = given_producer(pairs=True), given_producer(pairs=True)
    await steps(first, 0, 2)
    second.load(first.state())
    again = await steps(second, 2, 5)
    assert [rollout.groups for rollout in again] == [rollout.groups for rollout in whole[2:]]
    with pytest.raises(CheckpointError, match="prompts was 7, is 5"):
        second.load({**first.state(), "cursor": {**first.state()["cursor"], "prompts": 7}})


def test_a_prompt_that_is_too_long_is_left_out_with_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    """As are those behind the ones that are checked before the run."""
    prompts = [Prompt(prompt_id=f"p{i}", text="0" * (4 - i % 2), responses=("1",)) for i in range(8)]
    encoder = ResponseEncoder(PromptTokenizer(Digits(), 3), 3)
    rollout = OfflineProducer(RUN, PromptCursor(prompts, RUN.seed), encoder).rollout(1)
    assert {group.prompt.prompt_id for group in rollout.groups} <= {"p1", "p3", "p5", "p7"}
    left_out = rollout.metrics["rollout/groups_dropped/unfit_prompt"]
    assert left_out == rollout.metrics["rollout/groups_dropped"] == len(caplog.messages) > 0
    assert rollout.metrics["rollout/groups"] == 4
    assert caplog.messages[0].endswith(" has 4 tokens; --max-prompt-tokens allows 3. It is left out.")


def test_a_batch_of_pairs() -> None:
    """The rejected response has a digit more, and both a stop token; 3 tokens are the limit."""
    rollout = given_producer(pairs=True).rollout(1)
    batch = to_batch(rollout.groups, minibatches=2, version=0)
    number = int(batch.tokens[0])
    assert batch.tokens[:8].tolist() == [number, 1, number, 10, number, 2, number, number]
    assert set(batch.per_token) == {"loss_mask"}
    found = {name: column.tolist() for name, column in batch.per_sample.items()}
    assert found == {
        "position": list(range(8)),
        "group": [0, 0, 1, 1, 2, 2, 3, 3],
        "unit": [0, 0, 1, 1, 2, 2, 3, 3],
        "rollout": list(range(8)),
        "minibatch": [0, 0, 0, 0, 1, 1, 1, 1],
        "chosen": [1, 0] * 4,
    }
    metrics = rollout.metrics
    assert (metrics["rollout/samples"], metrics["rollout/groups"], metrics["rollout/epoch"]) == (8, 4, 0.8)
    assert (metrics["rollout/truncated"], metrics["rollout/response_tokens"]) == (0.5, 24)
    assert not [name for name in metrics if "reward" in name]


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_a_pair_is_never_divided(ranks: int) -> None:
    batch = to_batch(given_producer(pairs=True).rollout(1).groups, minibatches=2, version=0)
    shares = split(batch, ranks)
    for share in shares:
        group = share.per_sample["group"].tolist()
        assert all(group.count(number) == 2 for number in group)
    assert sorted(row for share in shares for row in share.per_sample["position"].tolist()) == list(range(8))
