"""What `rlcore eval` is asked for: sets, settings and flags, without a trainer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import Case, cases

from rlcore.api.errors import UserError
from rlcore.compose.resolved import Inference
from rlcore.config.layers import Layer
from rlcore.plugins.loader import Plugins, Switches, load
from rlcore_cli.evaluation import evaluation_flags, resolve_evaluation, select_evaluation, unknown

TOY = Path(__file__).parents[2] / "core/tests/compose/toy_plugin.py"


@pytest.fixture(scope="session")
def plugins() -> Plugins:
    return load(Switches(only=("files", "local", "sglang", "tasks"), files=(TOY,), strict=True))


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "test.jsonl"
    file.write_text('{"prompt": "p", "label": "p"}\n')
    return str(file)


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


@cases("cli evaluation: alone refused in one sentence")
def test_alone_refused_in_one_sentence(alone: Callable[..., Inference], case: Case) -> None:
    given = case.given
    with case.refused():
        alone(given)


def test_a_file_for_it_has_only_what_it_reads(alone: Callable[..., Inference]) -> None:
    with pytest.raises(UserError, match=r"evals.toml: lr is no setting of an evaluation"):
        alone({"task": "copy"}, {"lr": 0.1})


@cases("cli evaluation: a wrong type in its file")
def test_a_wrong_type_in_its_file(alone: Callable[..., Inference], case: Case) -> None:
    given = case.given
    with case.refused():
        alone({}, given)


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
    assert unknown("lr", empty, selection) == "--lr is no setting of an evaluation, but one of rlcore train."
    assert "Did you mean '--samples'" in unknown("sample", empty, selection)
