"""`--eval NAME=PATH` and `[eval.NAME]`: what an evaluation sets for itself in a run."""

from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import Case, cases

from rlcore import Config, Part
from rlcore.compose.evals import EvalConfig, EvalSet
from rlcore.compose.resolved import Resolved
from rlcore.compose.selection import Selection
from rlcore_cli.flags import flags
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


def test_a_task_may_have_a_path_of_its_own() -> None:
    """Not that of `--data`, which stands in for it elsewhere."""

    class Folder(Config):
        path: str

    source = Part(name="folder", factory="nowhere:Source", config=Folder(path="tasks"))
    flat = EvalSet(name="mine", config=EvalConfig(), source=source).flat()
    assert flat["eval.mine.task"] == "folder"
    assert flat["eval.mine.source.path"] == "tasks"


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


@cases("evals")
def test_refused_in_one_sentence(make: Make, case: Case) -> None:
    with case.refused():
        make(case.given)


def test_its_flags_are_there_once_it_is(choose: Callable[..., Selection]) -> None:
    names = {flag.name for flag in flags(choose({"eval": ["a=copy"], "eval.a.reward": "many"}))}
    assert {"eval.a.samples", "eval.a.source.digits", "eval.a.reward.mode"} <= names
    assert not [flag.name for flag in flags(choose()) if flag.name.startswith("eval.")]
