"""Plain functions as rewards: of one's own, and as those of TRL, verl and slime are written."""

import asyncio
import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlcore import DataError, PluginError, Prompt, RewardPart, Score
from rlcore.rollout.reward_mix import check_choices
from rlcore.rollout.score_check import Failure, checked_scores
from rlcore_functions.reward import FunctionReward
from rlcore_testing.rewards import sample

GROUP = [
    sample("4", "4", index=0, tokens=2, metadata={"level": 3}),
    sample("five", "4", index=1, tokens=1, metadata={"level": 3}),
]


def part(name: str, adapter: str = "rlcore_functions.reward:factory_of") -> RewardPart:
    """As a package offers what is called so here."""
    return RewardPart(name=name, factory=f"{__name__}:{name}", adapter=adapter)


def values(function: Any) -> list[float]:
    return [score.value for score in FunctionReward(function).score(GROUP)]


def of_response(response: str) -> float:
    return 1 / len(response)


def of_column(response: str, level: int, unknown: int = 2) -> float:
    return float(len(response) * level * unknown)


def of_group(samples: Any, labels: Any = None) -> list[bool]:
    return [one.text == one.prompt.label for one in samples]


def trl(
    prompts: Any, completions: Any, completion_ids: Any, answer: Any, **columns: Any
) -> list[float | None]:
    assert prompts == ["question"] * 2
    assert columns == {"level": [3, 3], "label": answer}
    assert [len(ids) for ids in completion_ids] == [2, 1]
    return [1.0 if text == label else None for text, label in zip(completions, answer, strict=True)]


def verl(data_source: Any, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, Any]:
    assert extra_info == {"level": 3}
    return {"score": solution_str == ground_truth, "length": len(solution_str), "said": solution_str}


async def slime(args: Any, sample: Any, **rest: Any) -> float:
    assert len(sample.tokens) - 1 == sample.response_length
    return float(sample.response == sample.label) + int(sample.index)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (of_response, [1.0, 0.25]),
        (of_column, [6.0, 24.0]),
        (of_group, [1.0, 0.0]),
        (trl, [1.0, 0.0]),
        (verl, [1.0, 0.0]),
        (slime, [1.0, 1.0]),
    ],
)
def test_it_is_given_what_its_parameters_name(function: Any, expected: list[float]) -> None:
    assert values(function) == expected


def test_none_of_trl_is_no_score() -> None:
    assert [score.applies for score in FunctionReward(trl).score(GROUP)] == [True, False]


def test_the_rest_of_trl_has_what_it_always_passes() -> None:
    def of_rest(completions: list[str], **rest: Any) -> list[float]:
        assert {*rest} == {"prompts", "completion_ids", "label", "level"}
        return [float(len(prompt)) for prompt in rest["prompts"]]

    assert values(of_rest) == [8.0, 8.0]


def test_verls_other_numbers_are_parts() -> None:
    assert FunctionReward(verl).score(GROUP)[1].parts == {"length": 4}


def test_numbers_of_numpy_are_parts_as_those_of_python() -> None:
    def judged(response: str) -> dict[str, Any]:
        numbers = {"f1": np.float32(0.5), "words": np.int64(3), "right": np.bool_(True), "whole": np.array(2)}
        return {
            "score": np.float32(1),
            **numbers,
            "said": np.str_("4"),
            "ids": np.array([1, 2]),
            "none": None,
        }

    [score, _] = FunctionReward(judged).score(GROUP)
    assert score == Score(value=1.0, parts={"f1": 0.5, "words": 3, "right": True, "whole": 2})


def test_trls_own_functions() -> None:
    from trl.rewards import get_soft_overlong_punishment, think_format_reward

    chat = [{"role": "user", "content": "hello"}]
    answers = [sample("<think>\na\n</think>\nb", prompt=chat), sample("b", prompt=chat)]
    assert [score.value for score in FunctionReward(think_format_reward).score(answers)] == [1.0, 0.0]
    assert values(get_soft_overlong_punishment(max_completion_len=2, soft_punish_cache=1)) == [-1.0, 0.0]


def test_what_a_function_of_trl_logs_is_a_part() -> None:
    def logs(completions: Any, log_metric: Any, log_extra: Any, **columns: Any) -> list[float]:
        log_metric("longest", float(max(map(len, completions))))
        log_extra("said", completions)
        return [0.0] * len(completions)

    assert [score.parts for score in FunctionReward(logs).score(GROUP)] == [{"longest": 4.0}] * 2


def test_a_parameter_that_nothing_fills() -> None:
    def asks(response: str, gold: str) -> float:
        return float(response == gold)

    says = r"asks for 'gold', which is no key of the prompt's metadata: .* copies all but .*messages, chosen"
    with pytest.raises(ValueError, match=says):
        FunctionReward(asks).score(GROUP)


def test_a_function_with_a_config_is_a_factory() -> None:
    assert isinstance(part("of_response").build(settings={}), FunctionReward)
    assert isinstance(part("factory", adapter="").build(settings={}), Made)


class Made:
    def score(self, samples: Any) -> Any:
        return samples


def factory(config: Any) -> Made:
    return Made()


class Characters:
    """A tokenizer whose tokens are characters."""

    def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> str:
        return "".join(map(chr, token_ids))


def of_spans(response: str, token_spans: list[tuple[int, int]], tokenizer: Any) -> Score:
    assert isinstance(tokenizer, Characters)
    return Score(value=len(token_spans), per_token=tuple(float(end) for _, end in token_spans))


def of_tokenizer(responses: list[str], tokenizer: Any) -> list[int]:
    assert isinstance(tokenizer, Characters)
    return [len(response) for response in responses]


class Asking:
    def __init__(self, config: Any, tokenizer: Any) -> None:
        self.tokenizer = tokenizer


def test_a_reward_that_asks_is_given_the_tokenizer() -> None:
    tokenizer: Any = Characters()
    [score, _] = FunctionReward(of_spans, tokenizer).score(GROUP)
    assert score.per_token == (1.0, 2.0)
    assert [one.value for one in FunctionReward(of_tokenizer, tokenizer).score(GROUP)] == [1, 4]
    for asking in (part("Asking", ""), *map(part, ("of_spans", "of_tokenizer", "slime"))):
        assert asking.asks_for("tokenizer")
    reward: Any = part("Asking", "").build(tokenizer=tokenizer, settings={})
    assert reward.tokenizer is tokenizer
    assert not part("of_response").asks_for("tokenizer")
    counted = part("of_tokenizer").build(tokenizer=tokenizer, settings={}).score(GROUP)
    assert [one.value for one in counted] == [1, 4]


def of_columns(completions: list[str], answer: list[str], difficulty: list[float]) -> list[float]:
    return [float(said == wanted) for said, wanted in zip(completions, answer, strict=True)]


def test_a_prompt_without_what_a_function_asks_for() -> None:
    bare = Prompt(prompt_id="p", text="?")
    labelled = replace(bare, label="7")
    with pytest.raises(
        DataError, match=r"'of_columns' cannot judge .*'p': it asks for 'answer', .*label-key"
    ):
        check_choices([bare], [part("of_columns")])
    with pytest.raises(DataError, match=r"asks for 'difficulty', which is no key of the prompt's metadata"):
        check_choices([labelled], [part("of_columns")])
    check_choices([replace(labelled, metadata={"difficulty": 1})], [part("of_columns")])
    with pytest.raises(
        DataError, match=r"its parameter 'difficulty' is no key .* Did you mean 'difficulties'\?"
    ):
        check_choices([replace(labelled, metadata={"difficulties": 1})], [part("of_columns")])


def test_an_error_names_the_line_of_the_function_alone() -> None:
    def fails(response: str) -> float:
        raise ValueError(response)

    [failure, _] = checked_scores(FunctionReward(fails), GROUP)
    assert isinstance(failure, Failure)
    line = fails.__code__.co_firstlineno + 1
    assert failure.reason == f"ValueError: 4 ({__file__}, line {line})"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda response: None, "it returned None; expected a number or a Score"),
        (lambda response: {"reward": 1}, "it returned a dict with 'reward'; expected its 'score'"),
        (lambda completions: 1.0, "it returned a float; expected a list with a number for each sample"),
    ],
)
def test_what_is_no_score_is_said(function: Callable[..., Any], reason: str) -> None:
    [failure, _] = checked_scores(FunctionReward(function), GROUP)
    assert isinstance(failure, Failure)
    assert reason in failure.reason


def test_a_column_that_steers_the_run_is_said() -> None:
    [failure, _] = checked_scores(part("of_columns").build(settings={}), GROUP)
    assert isinstance(failure, Failure)
    assert failure.reason.endswith("(reward, teacher, …)")


def test_a_function_that_is_no_factory() -> None:
    with pytest.raises(
        PluginError, match=r"'of_response': .* without a parameter 'config', so no factory; the"
    ):
        part("of_response", adapter="").load()


def test_a_reward_may_end_while_a_loop_runs() -> None:
    """Garbage may be collected at any time. pytest tells an error of the end."""
    rewards = [FunctionReward(slime)]
    rewards[0].score(GROUP)

    async def forget() -> None:
        rewards.clear()
        gc.collect()

    asyncio.run(forget())
