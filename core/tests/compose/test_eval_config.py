"""`--eval NAME=PATH` and `[eval.NAME]`: what an evaluation sets for itself, in a run and alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlcore.api.errors import UserError
from rlcore.compose.evaluation_only import evaluation_flags, resolve_evaluation, select_evaluation, unknown
from rlcore.compose.flags import flags
from rlcore.compose.resolved import Inference, Resolved
from rlcore.compose.selection import Selection
from rlcore.config.layers import Layer
from rlcore.plugins.loader import Plugins
from rlcore_files.config import FileConfig
from rlcore_tasks.config import DigitsConfig

Make = Callable[..., Resolved]


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "test.jsonl"
    file.write_text('{"prompt": "p", "label": "p"}\n')
    return str(file)


def test_each_has_its_own_sampling_reward_and_keys(make: Make, path: str) -> None:
    one, two = make(
        {
            "eval": [f"math={path}", "digits=reverse"],
            "eval.math.samples": "8",
            "eval.math.temperature": "0.6",
            "eval.math.reward": "many",
            "eval.math.reward.mode": "hard",
            "eval.math.source.prompt_key": "q",
            "eval.digits.source.digits": "3",
        }
    ).evals
    assert (one.name, one.config.samples, one.config.temperature) == ("math", 8, 0.6)
    assert one.reward
    assert (one.reward.name, one.reward.config.model_dump()["mode"]) == ("many", "hard")
    assert one.source.config == FileConfig(path=path, prompt_key="q")
    assert (two.reward, two.generator, two.config.samples) == (None, None, 1)
    assert two.source.name == "reverse"
    assert two.source.config == DigitsConfig(digits=3)


def test_what_is_printed_gives_the_same_evaluations(
    make: Make, write: Callable[[str], Path], path: str
) -> None:
    first = make(
        {
            "eval": [f"math={path}", "digits=sort"],
            "eval.math.reward": "many",
            "eval.math.generator": "single_turn",
            "eval.digits.max_tokens": "7",
        }
    )
    again = make({}, write(first.to_toml()))
    assert again == first
    assert (
        again.context_length == first.run.sampling.max_prompt_tokens + first.run.sampling.max_response_tokens
    )


def test_the_longest_response_of_all_needs_its_context(make: Make, path: str) -> None:
    resolved = make({"eval": [f"a={path}"], "eval.a.max_tokens": "5000"})
    assert resolved.context_length == resolved.run.sampling.max_prompt_tokens + 5000


def test_flags_are_stronger_than_a_file(make: Make, write: Callable[[str], Path], path: str) -> None:
    text = (
        f'[eval]\nshort = "copy"\n[eval.math]\ndata = "{path}"\nsamples = 4\ntemperature = 1.0\n'
        '[eval.math.reward]\nname = "many"\nmode = "hard"\n[eval.math.source]\nprompt_key = "q"\n'
    )
    file = write('algo = "toy"\nmodel = "tiny"\nengine = "local"\n' + text)
    math = {one.name: one for one in make({"eval.math.samples": "2"}, file).evals}["math"]
    assert (math.config.samples, math.config.temperature) == (2, 1.0)
    other = {
        one.name: one for one in make({"eval": ["math=sort"], "eval.math.reward": "token_match"}, file).evals
    }
    assert list(other) == ["short", "math"]
    assert other["math"].source.name == "sort"
    assert other["math"].reward
    assert other["math"].reward.name == "token_match"


def test_a_file_has_the_keys_of_that_of_the_run(make: Make, path: str) -> None:
    flags = {
        "data": path,
        "reward": "many",
        "source.prompt_key": "q",
        "source.eval_fraction": "0.5",
        "eval": [f"a={path}"],
    }
    (one,) = make(flags).evals
    assert one.source.config == FileConfig(path=path, prompt_key="q")
    (one,) = make({**flags, "eval.a.source.prompt_key": "question"}).evals
    assert one.source.config == FileConfig(path=path, prompt_key="question")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"eval": ["math"]}, "--eval: found 'math', expected NAME=PATH or NAME=TASK"),
        ({"eval": ["My-Set=copy"]}, "lower-case"),
        (
            {"eval": ["math=nowhere.jsonl"]},
            "--eval.math.data: found 'nowhere.jsonl', which is no file",
        ),
        ({"eval": ["a=copy"], "eval.a.reward": "manny"}, "--eval.a.reward: found 'manny'"),
        ({"eval": ["a=copy"], "eval.a.samples": "0"}, "--eval.a.samples: found '0', expected an integer"),
        ({"eval": ["a=copy"], "eval.a.samples": "4"}, "add --eval.a.temperature"),
        (
            {"eval": ["a=copy"], "eval.a.sample": "4"},
            "--eval.a.sample is unknown. Did you mean '--eval.a.samples'",
        ),
        ({"eval.b.samples": "4"}, "the evaluation 'b' has no data; add --eval b=PATH"),
        ({"eval": ["a=copy"], "eval.a.source.path": "x"}, "--eval.a.source.path is unknown"),
    ],
)
def test_refused_in_one_sentence(make: Make, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        make(given)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_its_flags_are_there_once_it_is(choose: Callable[..., Selection]) -> None:
    names = {flag.name for flag in flags(choose({"eval": ["a=copy"], "eval.a.reward": "many"}))}
    assert {"eval.a.samples", "eval.a.source.digits", "eval.a.reward.mode"} <= names
    assert not [flag.name for flag in flags(choose()) if flag.name.startswith("eval.")]


# --- alone ---------------------------------------------------------------------------------------------


@pytest.fixture
def alone(plugins: Plugins) -> Callable[..., Inference]:
    def alone(given: dict[str, Any], file: dict[str, Any] | None = None) -> Inference:
        layer = Layer(label="", values={"model": "tiny", "engine": "local", **given})
        read = Layer(label="evals.toml", values=file) if file else None
        selection = select_evaluation(plugins.registry, read, layer)
        layers = [one for one in (read, layer) if one]
        return resolve_evaluation(selection, layers, plugins.files)

    return alone


def test_data_and_task_are_sets_with_their_names(alone: Callable[..., Inference], path: str) -> None:
    found = alone({"data": path, "task": "sort", "eval": ["mine=copy"], "samples": "3", "temperature": "0.5"})
    assert [one.name for one in found.evals] == ["mine", "test", "sort"]
    assert {(one.config.samples, one.config.temperature) for one in found.evals} == {(3, 0.5)}
    assert found.run.sampling.max_prompt_tokens == 32, "the preset suggests it"
    assert found.run.evaluation.eval_prompts > 10**9, "all prompts"
    assert found.rewards == ()
    found = alone({"data": path, "reward": ["many=0.5", "token_match"], "reward.many.mode": "hard"})
    assert [(part.name, part.weight) for part in found.rewards] == [("many", 0.5), ("token_match", 1.0)]


def test_a_set_may_differ_from_the_others(alone: Callable[..., Inference]) -> None:
    flags = {"eval": ["a=copy", "b=sort"], "samples": "3", "temperature": "0.5", "eval.b.samples": "5"}
    assert [one.config.samples for one in alone(flags).evals] == [3, 5]
    found = alone(
        {"samples": "2"}, {"eval.a.task": "copy", "eval.a.temperature": 0.5, "max_response_tokens": 9}
    )
    (one,) = found.evals
    assert (one.config.samples, one.config.temperature, found.run.sampling.max_response_tokens) == (2, 0.5, 9)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "--data is missing"),
        ({"model": "huge"}, "huge"),
        ({"task": "copy", "samples": "0"}, "--samples: found '0', expected an integer of at least 1"),
        ({"task": "copy", "score_by": "reward"}, "but there is none"),
        ({"data": "nowhere.jsonl"}, "'nowhere.jsonl', which is no file"),
    ],
)
def test_alone_refused_in_one_sentence(
    alone: Callable[..., Inference], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        alone(given)
    assert said in str(caught.value)


def test_a_file_for_it_has_only_what_it_reads(alone: Callable[..., Inference]) -> None:
    with pytest.raises(UserError, match=r"evals.toml: lr is no setting of an evaluation"):
        alone({"task": "copy"}, {"lr": 0.1})


def test_flags_alone_are_none_of_a_trainer(plugins: Plugins) -> None:
    layer = Layer(label="", values={"model": "tiny", "task": "copy"})
    names = [flag.name for flag in evaluation_flags(select_evaluation(plugins.registry, None, layer))]
    assert {"samples", "max_response_tokens", "eval.copy.samples", "engines"} <= set(names)
    assert not {"lr", "steps", "group_size", "eval_every", "max_tokens"} & set(names)
    assert len(names) == len(set(names))


def test_a_flag_of_a_trainer_is_not_proposed_again(plugins: Plugins) -> None:
    layer = Layer(label="", values={"model": "tiny", "task": "copy"})
    selection = select_evaluation(plugins.registry, None, layer)
    empty = Layer(label="", values={})
    said = unknown("lr", empty, selection)
    assert said.startswith("--lr is no setting of an evaluation.")
    assert "'--lr'" not in said
    assert "Did you mean '--samples'" in unknown("sample", empty, selection)
