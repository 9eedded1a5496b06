"""`rlcore plugins check`: what is said, the exit codes, settings and prompts as flags."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from program import Program
from refusals import Case, cases

PLUGIN = """
from collections.abc import Iterable
from pydantic import Field
from rlcore import Component, RewardConfig, Score, hookimpl

class MineConfig(RewardConfig):
    scale: float = Field(1.0, description="what a right answer is worth")
    odd: bool = Field(False, description="be odd")

class Mine:
    calls = 0
    def __init__(self, config):
        self.config = config
    def score(self, samples):
        Mine.calls += self.config.odd
        right = [str(one.prompt.label) in one.text for one in samples]
        return [Score(value=self.config.scale * one + Mine.calls) for one in right]

@hookimpl
def rlcore_rewards() -> Iterable[Component]:
    yield Component(name="mine", factory=f"{__name__}:Mine", summary="right answers", config=MineConfig)
    yield Component(name="other", factory=f"{__name__}:Nothing", summary="not there")
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RLCORE_PLUGINS", "files,functions,tasks")
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    return str(file)


def test_a_sound_part(plugin: str, program: Program) -> None:
    out = program("plugins", "check", "mine", "--plugin", plugin, "--reward.mine.scale", "2").splitlines()
    assert re.fullmatch(r"reward mine of .*mine\.py sha256:\w+", out[0])
    assert "  ok     it says the same again" in out
    assert re.fullmatch(r"\d+ hold, 0 fail, \d do not apply\.", out[-1])


def test_what_fails_is_named_with_its_reason(plugin: str, program: Program) -> None:
    out = program("plugins", "check", "mine", "--plugin", plugin, "--reward.mine.odd", code=1)
    assert re.search(r"  FAILS  it says the same again: asked again, the scores: number 0 has value \d", out)
    asked = "A score depends on nothing but the samples, in another worker too."
    assert f"\n         what is asked: {asked}\n" in out


def test_a_plugin_file_is_checked_as_a_whole(plugin: str, program: Program) -> None:
    checked = program.json("plugins", "check", "--plugin", plugin, "--json", code=1)["checked"]
    failed = {one["name"]: [f for f in one["findings"] if f["outcome"] == "fails"] for one in checked}
    assert not failed["mine"]
    (said,) = failed["other"]
    assert said["name"] == "its factory is where its record says"
    assert "has no 'Nothing'" in said["reason"]


def test_prompts_are_those_of_the_data(plugin: str, tmp_path: Path, program: Program) -> None:
    picky = tmp_path / "picky.py"
    picky.write_text("def picky(response, points):\n    return float(points)\n")
    said = program.refused("plugins", "check", "picky", "--plugin", str(picky))
    assert "give prompts whose answers it can judge, by --data FILE" in said
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"question": "?", "label": "1", "metadata": {"points": 2}}) + "\n")
    given = ["--data", str(rows), "--source.prompt-key", "question"]
    program("plugins", "check", "picky", "--plugin", str(picky), *given)


@cases("cli: check")
def test_bad_input(case: Case, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCORE_PLUGINS", "files,functions,tasks")
    case.check(program.refused("plugins", "check", *case.given))


BRIDGE = """
from collections.abc import Iterable
from rlcore import ModelFamily, hookimpl

class Bridge:
    def __init__(self, config):
        pass

@hookimpl
def rlcore_models() -> Iterable[ModelFamily]:
    known = {{"factory": f"{{__name__}}:Bridge", "summary": "x", "architectures": ("MineForCausalLM",)}}
    yield ModelFamily(name="mine", trainer={trainer!r}, **known)
"""


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        ("acme", "model 'mine' is a bridge for the trainer 'acme', which is not installed or has no suite"),
        ("megatron", "model 'mine' has neither `sizes` nor a `preset`, so that no model of it can be made"),
    ],
)
def test_a_bridge_that_cannot_be_checked(
    trainer: str, said: str, tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLCORE_PLUGINS", "megatron")
    (tmp_path / "bridge.py").write_text(BRIDGE.format(trainer=trainer))
    assert said in program.refused("plugins", "check", "mine", "--plugin", str(tmp_path / "bridge.py"))


def test_a_kind_that_needs_pytest_says_so(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcore_testing.by_pytest.NEEDED", {"no_such_pytest": "pytest-gone"})
    said = "A part of kind engine is checked by pytest-gone, which is not installed; pip install pytest-gone."
    assert said in program.refused("plugins", "check", "local", "--kind", "engine")


LACKING = """
from collections.abc import Iterable
from rlcore import Callback, Component, ConfigError, MissingPackageError, Tracker, hookimpl

class Lacking({base}):
    def __init__(self, config):
        raise {error}

@hookimpl
def rlcore_{kind}s() -> Iterable[Component]:
    yield Component(name="lacking", factory=f"{{__name__}}:Lacking", summary="lacks something")
"""


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        ("callback", "MissingPackageError", "acme is not installed; pip install acme."),
        ("tracker", "ConfigError", "--tracker lacking: found no account; run acme login."),
    ],
    ids=["package", "account"],
)
def test_what_is_not_there_is_said_once(
    kind: str, error: str, said: str, tmp_path: Path, program: Program
) -> None:
    plugin = tmp_path / "lacking.py"
    plugin.write_text(LACKING.format(base=kind.title(), error=f"{error}({said!r})", kind=kind))
    program("plugins", "check", "lacking", "--plugin", str(plugin), code=2)
    assert program.err == f"error: {said}\n"
    assert "FAILS" not in program.out


@pytest.mark.skipif(find_spec("sglang") is not None, reason="of an engine that is not installed")
def test_an_engine_that_is_not_installed_is_said_once(program: Program) -> None:
    assert program.refused("plugins", "check", "sglang").startswith("sglang is not installed for ")
    assert "FAILS" not in program.out
