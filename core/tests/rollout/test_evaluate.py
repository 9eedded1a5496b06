"""Evaluation: as each set is sampled and judged, counted over all answers, without a trace."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, strategies as st
from rollout_world import World

from rlcore import DataError, GenerationStatus, Json, Prompt, RewardStatus, Sample, Sampling, Score
from rlcore.rollout.evaluate import Evaluation, eval_metrics, is_exact, pass_at_k, passes, result
from rlcore_testing.samples import sample_of


async def test_greedy_evaluation_leaves_no_trace() -> None:
    world = World(engines=2)
    state = world.producer.state()
    prompts = [*world.prompts[:3], Prompt(prompt_id="wrong", text="123", label="321")]
    result = await world.evaluate(prompts)
    assert result.score == 0.75
    assert result.metrics["reward_mean"] == pytest.approx((0 + 1 + 2 + 3) / 40)
    assert [sample.text for sample in result.samples] == ["000", "001", "002", "123"]
    assert result.metrics["unscored"] == result.metrics["truncated"] == 0
    assert result.metrics["reward/last"] == result.metrics["reward_mean"]
    assert not [name for name in result.metrics if "@" in name]
    assert world.producer.state() == state
    with pytest.raises(DataError, match="no prompts"):
        await world.evaluate([])


@pytest.mark.parametrize(
    ("label", "text", "exact"),
    [
        ("12", " 12\n", True),
        ("12", "12.", False),
        (12, "12", True),
        (True, "true", True),
        (["a", "b"], "b", True),
        (["a", "b"], "c", False),
        ("12", "<think>\n\n</think>\n\n12", True),
        ("12", "so\n</think>\n\n12", True),
        ("<think>so</think>12", "so?</think>12", True),
        ("12", "<think>12", False),
        ("so", "<think>so</think>12", False),
        (None, "None", False),
        ({"a": 1}, "{'a': 1}", False),
    ],
)
def test_any_accepted_answer_is_exact(label: Json, text: str, exact: bool) -> None:
    prompt = Prompt(prompt_id="p", text="?", label=label)
    sample = sample_of(prompt=prompt, text=text, status=GenerationStatus.COMPLETED)
    assert is_exact(sample) is exact
    assert not is_exact(replace(sample, status=GenerationStatus.TRUNCATED))


async def test_evaluation_counts_what_failed_as_wrong() -> None:
    world = World()
    world.engine.endings = {"eval-0.0-0": "abort", "eval-0.0-1": "abort", "eval-1.0-0": "length"}
    result = await world.evaluate(world.prompts[:4])
    assert (result.score, result.metrics["unscored"], result.metrics["truncated"]) == (0.5, 0.25, 0.25)


async def test_a_set_without_a_reward_is_judged_by_its_labels() -> None:
    world = World()
    result = await world.evaluate(world.prompts[:3], scorer=None, exact=False)
    assert result.score == 1
    assert result.metrics == {"response_length_mean": 4, "truncated": 0}


async def test_several_answers_to_each_prompt() -> None:
    world = World()
    world.rewards.unscored = {2: [RewardStatus.FAILED, RewardStatus.FAILED]}
    result = await world.evaluate(
        world.prompts[:3],
        exact=False,
        samples=6,
        sampling=Sampling(max_tokens=5, temperature=0.9),
        solved_at=0.5,
    )
    assert [sample.prompt.prompt_id for sample in result.samples] == ["p0"] * 6 + ["p1"] * 6 + ["p2"] * 6
    values = [
        [0.0 if s.score is None else s.score.value for s in result.samples[i : i + 6]] for i in (0, 6, 12)
    ]
    every = [value for of_prompt in values for value in of_prompt]
    assert result.score == result.metrics["avg@6"] == pytest.approx(sum(every) / 18)
    assert 0 < result.score < 1
    solved = [sum(value >= 0.5 for value in of_prompt) for of_prompt in values]
    assert result.metrics["pass@6"] == pytest.approx(sum(c > 0 for c in solved) / 3)
    assert result.metrics["pass@1"] == pytest.approx(sum(solved) / 18)
    assert [name for name in result.metrics if name.startswith("pass@")] == [
        "pass@1",
        "pass@2",
        "pass@4",
        "pass@6",
    ]
    assert result.metrics["unscored"] == pytest.approx(1 / 18)
    assert {"eval/set/score", "eval/set/pass@4", "eval/set/avg@6"} <= set(eval_metrics({"set": result}))


@given(st.integers(1, 9), st.data())
def test_pass_at_k_counts_the_subsets(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_of_many_answers() -> None:
    assert pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5)
    assert passes([[1, 0], [0, 0]], 2, 1.0) == {"pass@1": 0.25, "pass@2": 0.5}


def test_a_split_trajectory_is_one_answer() -> None:
    prompt = Prompt(prompt_id="p", text="q", label="yes")

    def sample(rollout: str, text: str, value: float) -> Sample:
        return sample_of(
            (1, 2),
            prompt=prompt,
            rollout_id=rollout,
            text=text,
            status=GenerationStatus.COMPLETED,
            score=Score(value=value),
        )

    evaluation = Evaluation(
        name="set",
        prompts=[prompt],
        generator=None,  # type: ignore[arg-type]  # the answers are there
        scorer=None,
        sampling=Sampling(max_tokens=2),
        samples=2,
    )
    parts = [sample("a", "hm", 0), sample("a", "yes", 1), sample("b", "no", 0)]
    found = result(evaluation, [parts])
    assert (found.score, found.metrics["pass@2"], len(found.samples)) == (0.5, 1.0, 3)
