"""`rlcore.train` and its siblings, without a run: what they ask of the program, and what they make of it."""

import json
import math
import runpy
from math import sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rlcore
from rlcore.plugins.files import read
from rlcore_cli.from_python import _answer, arguments
from rlcore_cli.function_source import write_functions

HALF = 0.5


def brevity(response: str) -> float:
    return math.exp(-len(response)) + sqrt(len([character for character in response if character]))


def has_an_attribute(response: Any) -> float:
    return float(response.HALF)


def has_a_default(response: str, scale: float = math.pi) -> float:
    return scale


def uses_a_value(response: str) -> float:
    return HALF


def of_another_framework(queries: list[str]) -> list[float]:
    return [0.0 for _ in queries]


def Capital(response: str) -> float:  # noqa: N802 # the name that is refused
    return 0.0


class Other:
    @staticmethod
    def brevity(response: str) -> float:
        return 0.0


def test_a_notebook_shows_the_curve_and_the_last_steps(tmp_path: Path) -> None:
    (tmp_path / "run.toml").touch()
    assert "No step yet" in rlcore.Run(tmp_path)._repr_html_()
    rows = [{"step": step, "rollout/reward_mean": step / 8, "eval/<b>/score": 0.5} for step in range(10)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    html = rlcore.Run(tmp_path)._repr_html_()
    assert (html.count("<tr>"), html.count("<circle"), html.count("<b>")) == (9, 10, 1)
    assert 'points="60.0,144.0 ' in html
    assert "1.12" in html


def test_settings_become_the_flags_of_the_command_line() -> None:
    assert arguments(
        {
            "algo": "grpo",
            "lr": 1e-6,
            "curriculum": True,
            "partial_rollouts": False,
            "stop": ["a", "--b"],
            "correction": [],
            "loss": {"name": "ppo_clip", "clip_high": None},
            "eval": {"b": "reverse", "c": {"task": "sort"}},
            "advantage": {"std": False},
            "megatron": {"sequence_parallel": True},
            "generator": {"name": "environment", "options": {"size": 3}},
            "run_dir": Path("runs/x"),
        }
    ) == [
        "--algo=grpo",
        "--lr=1e-06",
        "--curriculum",
        "--no-partial-rollouts",
        "--stop=a",
        "--stop=--b",
        "--no-correction",
        "--loss=ppo_clip",
        "--loss.clip-high=none",
        "--eval=b=reverse",
        "--eval=c=sort",
        "--no-advantage.std",
        "--megatron.sequence-parallel=true",
        "--generator=environment",
        '--generator.options={"size": 3}',
        "--run-dir=runs/x",
    ]


def test_a_function_travels_with_what_it_imports(tmp_path: Path) -> None:
    given = write_functions({"reward": {brevity: 0.5, "format": 1.0}, "lr": 1}, ("reward",), tmp_path)
    assert given == {"reward": [f"{tmp_path}/brevity.py:brevity=0.5", "format=1.0"], "lr": 1}
    names: dict[str, Any] = {}
    exec((tmp_path / "brevity.py").read_text(), names)
    assert names["brevity"]("four") == math.exp(-4) + 2
    with pytest.raises(TypeError) as caught:
        names["brevity"](4)
    last = caught.traceback[-1]
    assert (str(last.path), last.lineno) == (__file__, brevity.__code__.co_firstlineno), "the user's own file"


def test_the_place_of_a_function_is_no_part_of_its_content(tmp_path: Path) -> None:
    def sha256(module: str, text: str) -> str:
        (tmp_path / module).write_text(text)
        folder = tmp_path / f"of-{module}"
        folder.mkdir()
        write_functions({"reward": runpy.run_path(str(tmp_path / module))["mine"]}, ("reward",), folder)
        return read(folder / "mine.py").sha256

    text = "def mine(response: str) -> float:\n    return 0.5\n"
    first = sha256("a.py", text)
    assert first == sha256("b.py", f"x = 1\n\n\n{text}"), "moved"
    assert first != sha256("c.py", text.replace("0.5", "0.25"))


def test_an_attribute_may_have_the_name_of_a_value_and_a_default_travels(tmp_path: Path) -> None:
    write_functions({"reward": [has_an_attribute, has_a_default]}, ("reward",), tmp_path)
    names: dict[str, Any] = {}
    for name in ("has_an_attribute", "has_a_default"):
        exec((tmp_path / f"{name}.py").read_text(), names)
    assert names["has_an_attribute"](SimpleNamespace(HALF=0.25)) == 0.25
    assert names["has_a_default"]("") == math.pi


def test_an_evaluation_takes_a_function_too(tmp_path: Path) -> None:
    sets = {"a": {"task": "copy", "reward": brevity, "samples": 2}, "b": "reverse"}
    given = write_functions({"reward": brevity, "eval": sets}, ("reward",), tmp_path)
    assert given["reward"] == given["eval"]["a"]["reward"] == f"{tmp_path}/brevity.py:brevity"
    assert f"--eval.a.reward={tmp_path}/brevity.py:brevity" in arguments(given)
    assert (given["eval"]["a"]["samples"], given["eval"]["b"]) == (2, "reverse")


def test_the_program_judges_the_parameters_which_knows_the_plugins(tmp_path: Path) -> None:
    given = write_functions({"reward": of_another_framework}, ("reward",), tmp_path)
    assert given == {"reward": f"{tmp_path}/of_another_framework.py:of_another_framework"}


def test_only_rewards_have_weights(tmp_path: Path) -> None:
    settings = {"generator": {"timeout": 3}, "reward": {"math": 0.5}}
    given = write_functions(settings, ("reward", "generator"), tmp_path)
    assert given == {"generator": {"timeout": 3}, "reward": ["math=0.5"]}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (uses_a_value, "reward: uses_a_value uses HALF, which no import brings"),
        (Capital, "reward: found Capital, expected a name of lower-case letters"),
        (
            lambda response: len(response),
            r"^reward: found a lambda, expected a function that `def` made, 'file\.py:function', or the name",
        ),
        (len, "reward: found the builtin function or method len, expected a function that `def` made"),
        ([brevity, Other.brevity], "reward: two functions are called brevity"),
    ],
)
def test_a_function_that_cannot_travel_is_refused(value: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(rlcore.ConfigError, match=sentence):
        write_functions({"reward": value}, ("reward",), tmp_path)


def test_a_function_that_needs_the_one_around_it_is_refused(tmp_path: Path) -> None:
    scale = 2.0

    def scaled(response: str) -> float:
        return scale

    with pytest.raises(rlcore.ConfigError, match="reward: scaled uses scale of the function around it"):
        write_functions({"reward": scaled}, ("reward",), tmp_path)


def test_exit_codes_become_exceptions() -> None:
    said = json.dumps({"run": "r", "steps": 3, "error": "the engine died."})
    assert _answer('{"run": "r"}\n', 0) == {"run": "r"}
    assert _answer('{\n "layouts": []\n}\n', 0) == {"layouts": []}
    with pytest.raises(rlcore.RunError, match="the engine died"):
        _answer(said, 1)
    with pytest.raises(rlcore.UserError, match="the engine died"):
        _answer(said, 2)
    with pytest.raises(rlcore.RunError, match="exit code -9"):
        _answer("", -9)
    with pytest.raises(KeyboardInterrupt):
        _answer(said, 130)


def test_a_wrong_setting_has_the_sentence_of_the_command_line() -> None:
    with pytest.raises(rlcore.UserError, match=r"--step is unknown\. Did you mean '--steps'"):
        rlcore.train(algo="grpo", model="qwen3", step=3)


def test_a_run_is_read_from_its_folder(tmp_path: Path) -> None:
    with pytest.raises(rlcore.ConfigError, match=r"found no run\.toml"):
        rlcore.Run(tmp_path)
    (tmp_path / "run.toml").write_text("steps = 2\n[loss]\nname = 'ppo_clip'\n")
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "train/loss": 0.5}\n{"step": 2, "train/loss": 0.25}\n{"st'
    )
    for step in (9, 10):
        (tmp_path / f"checkpoints/{step}").mkdir(parents=True)
        (tmp_path / f"checkpoints/{step}/complete.json").touch()
        (tmp_path / "samples").mkdir(exist_ok=True)
        (tmp_path / f"samples/eval-{step}.jsonl").write_text(json.dumps({"score": step}) + "\n")
    (tmp_path / "checkpoints/11").mkdir()
    run = rlcore.Run(tmp_path)
    assert run.settings == {"steps": 2, "loss": {"name": "ppo_clip"}}
    assert run.metrics["train/loss"].to_dict() == {1: 0.5, 2: 0.25}
    assert [path.name for path in run.checkpoints] == ["9", "10"]
    assert run.samples()["score"].tolist() == [10]
    assert run.samples(9)["score"].tolist() == [9]
    with pytest.raises(rlcore.ConfigError, match="step: found 3, expected one with eval samples: 9, 10"):
        run.samples(3)
