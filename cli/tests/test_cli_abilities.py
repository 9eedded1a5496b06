"""The command refuses what a trainer does not declare, before anything starts."""

from pathlib import Path

import pytest

from rlcore_cli.main import run

TRAINERS = """
from rlcore import Ability, Component, TrainerConfig, hookimpl

class Bare(TrainerConfig):
    needs_bridge = False

class Scoring(Bare):
    abilities = frozenset({Ability.SCORERS})

@hookimpl
def rlcore_trainers():
    yield Component(name="bare", factory=f"{__name__}:Bare", summary="x", config=Bare)
    yield Component(name="scoring", factory=f"{__name__}:Scoring", summary="x", config=Scoring)
"""


@pytest.mark.parametrize(
    ("trainer", "given", "flag"),
    [
        ("bare", "--algo ppo", "--advantage"),
        ("bare", "--algo grpo --replay-routing", "--replay-routing"),
        ("bare", "--algo grpo --kl-coef 0.1 --reference.placement swapped", "--kl-coef"),
        ("scoring", "--algo grpo --kl-coef 0.1 --reference.placement swapped", "--reference.placement"),
        ("scoring", "--algo grpo --weights folder", "--weights"),
    ],
)
def test_a_dry_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trainer: str, given: str, flag: str
) -> None:
    plugin = tmp_path / "trainers.py"
    plugin.write_text(TRAINERS)
    flags = ["--model", "qwen3", "--trainer", trainer, "--dry-run", *given.split()]
    assert run(["--plugin", str(plugin), "train", *flags]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert f"{flag}: found " in err
    assert f"the trainer {trainer!r}" in err


def test_a_conversion_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLCORE_PLUGINS", "import,qwen")
    plugin, model = tmp_path / "trainers.py", tmp_path / "model"
    plugin.write_text(TRAINERS.replace("config=Bare", "config=Bare, default=True"))
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    assert run(["--plugin", str(plugin), "convert", str(model), str(tmp_path / "out")]) == 2
    assert "the trainer 'bare' has no weights in a form of its own" in capsys.readouterr().err
