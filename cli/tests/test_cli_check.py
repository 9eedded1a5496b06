"""`rlcore plugins check`: what is said, the exit codes, settings and prompts as flags."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from refusals import Case, cases, sentence

from rlcore_cli.main import run

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


def test_a_sound_part(plugin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plugins", "check", "mine", "--plugin", plugin, "--reward.mine.scale", "2"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"reward mine of .*mine\.py sha256:\w+", out[0])
    assert "  ok     it says the same again" in out
    assert re.fullmatch(r"\d+ hold, 0 fail, \d do not apply\.", out[-1])


def test_what_fails_is_named_with_its_reason(plugin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plugins", "check", "mine", "--plugin", plugin, "--reward.mine.odd"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"  FAILS  it says the same again: asked again, the scores: number 0 has value \d", out)
    asked = "A score depends on nothing but the samples, in another worker too."
    assert f"\n         what is asked: {asked}\n" in out


def test_a_plugin_file_is_checked_as_a_whole(plugin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plugins", "check", "--plugin", plugin, "--json"]) == 1
    checked = json.loads(capsys.readouterr().out)["checked"]
    failed = {one["name"]: [f for f in one["findings"] if f["outcome"] == "fails"] for one in checked}
    assert not failed["mine"]
    (said,) = failed["other"]
    assert said["name"] == "its factory is where its record says"
    assert "has no 'Nothing'" in said["reason"]


def test_prompts_are_those_of_the_data(
    plugin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picky = tmp_path / "picky.py"
    picky.write_text("def picky(response, points):\n    return float(points)\n")
    assert run(["plugins", "check", "picky", "--plugin", str(picky)]) == 2
    assert "give prompts whose answers it can judge, by --data FILE" in capsys.readouterr().err
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"question": "?", "label": "1", "metadata": {"points": 2}}) + "\n")
    given = ["--data", str(rows), "--source.prompt-key", "question"]
    assert run(["plugins", "check", "picky", "--plugin", str(picky), *given]) == 0
    capsys.readouterr()


@cases("cli: check")
def test_bad_input(case: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCORE_PLUGINS", "files,functions,tasks")
    assert run(["plugins", "check", *case.given]) == 2
    case.check(sentence(capsys.readouterr().err))


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
    trainer: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RLCORE_PLUGINS", "megatron")
    (tmp_path / "bridge.py").write_text(BRIDGE.format(trainer=trainer))
    assert run(["plugins", "check", "mine", "--plugin", str(tmp_path / "bridge.py")]) == 2
    assert said in capsys.readouterr().err


def test_a_kind_that_needs_pytest_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlcore_testing.by_pytest.NEEDED", {"no_such_pytest": "pytest-gone"})
    assert run(["plugins", "check", "local", "--kind", "engine"]) == 2
    said = "A part of kind engine is checked by pytest-gone, which is not installed; pip install pytest-gone."
    assert said in capsys.readouterr().err


NEEDY = """
from collections.abc import Iterable
from rlcore import Callback, Component, MissingPackageError, hookimpl

class Needy(Callback):
    def __init__(self, config):
        raise MissingPackageError("acme is not installed; pip install acme.")

@hookimpl
def rlcore_callbacks() -> Iterable[Component]:
    yield Component(name="needy", factory=f"{__name__}:Needy", summary="needs acme")
"""


def test_what_is_not_installed_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "needy.py").write_text(NEEDY)
    assert run(["plugins", "check", "needy", "--plugin", str(tmp_path / "needy.py")]) == 2
    told = capsys.readouterr()
    assert told.err == "error: acme is not installed; pip install acme.\n"
    assert "FAILS" not in told.out


LOCKED = """
from collections.abc import Iterable
from rlcore import Component, ConfigError, Tracker, hookimpl

class Locked(Tracker):
    def __init__(self, config):
        raise ConfigError("--tracker locked: found no account; run acme login.")

@hookimpl
def rlcore_trackers() -> Iterable[Component]:
    yield Component(name="locked", factory=f"{__name__}:Locked", summary="needs an account")
"""


def test_a_tracker_without_its_account_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "locked.py").write_text(LOCKED)
    assert run(["plugins", "check", "locked", "--plugin", str(tmp_path / "locked.py")]) == 2
    told = capsys.readouterr()
    assert told.err == "error: --tracker locked: found no account; run acme login.\n"
    assert "FAILS" not in told.out


@pytest.mark.skipif(find_spec("sglang") is not None, reason="of an engine that is not installed")
def test_an_engine_that_is_not_installed_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plugins", "check", "sglang"]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("error: sglang is not installed for ")
    assert "FAILS" not in told.out
