"""Choices that nobody made, and the flags of a selection."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rlcore import ConfigError, Kind, PluginError, Registry
from rlcore.compose.selection import Selection
from rlcore.config import layers
from rlcore.config.layers import Layer
from rlcore.plugins.loader import Plugins, Switches, load
from rlcore_cli.evaluation import resolve_evaluation, select_evaluation
from rlcore_cli.flags import flags
from rlcore_cli.resolve import resolve
from rlcore_cli.select import select
from rlcore_files.config import FileConfig
from rlcore_toolkit import machine

Choose = Callable[..., Selection]
TOY = Path(__file__).with_name("toy_plugin.py")


@pytest.mark.parametrize(
    ("device", "installed", "engine"),
    [("none", True, "local"), (".", False, "local"), (".", True, "sglang")],
)
def test_the_engine_follows_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, installed: bool, engine: str
) -> None:
    monkeypatch.setattr(machine, "_GPU_DEVICES", (tmp_path / device,))
    monkeypatch.setattr(machine, "find_spec", lambda name: name if installed else None)
    found = load(Switches(only=("local", "sglang"))).registry.default(Kind.ENGINE)
    assert found is not None
    assert found.record.name == engine


def test_of_several_defaults_none_is_chosen(tmp_path: Path) -> None:
    """So that nothing wins by the order of installation: the user is asked."""
    registry = load(
        Switches(only=("local", "sampling", "sglang", "tasks"), files=(_rival(tmp_path), TOY))
    ).registry
    selection = select(registry, None, Layer(label="", values={"algo": "toy", "model": "tiny"}))
    with pytest.raises(
        ConfigError, match=r"^--generator is missing: .*, expected one of other, single_turn\.$"
    ):
        selection.require_complete()


CLASH = """
from rlcore.api.hookspecs import hookimpl
from rlcore.api.records import Component

@hookimpl
def {hook}():
    yield Component(name="{name}", factory="x:y", summary="x")
"""


def test_a_default_is_never_left_out_silently(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where two plugins offer its name: unless the user chooses another one."""
    registry = _with_twice(monkeypatch, tmp_path, "rlcore_generators", "single_turn")
    unchosen = select(registry, None, Layer(label="", values={}))
    assert unchosen.chosen("engine"), "its help shows the other defaults"
    with pytest.raises(PluginError, match=r"'single_turn' is offered by two plugins, .* and twice \("):
        unchosen.require_complete()
    selection = select(registry, None, Layer(label="", values={"generator": "best_of_n"}))
    assert selection.chosen("generator") == "best_of_n"
    with pytest.raises(ConfigError, match=r"^--algo is missing"):
        selection.require_complete()
    layer = Layer(label="", values={"task": "copy"})
    with pytest.raises(PluginError, match="offered by two plugins"):
        resolve_evaluation(select_evaluation(registry, None, layer), [layer], ())


def test_a_default_producer_is_never_left_out_silently(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    registry = _with_twice(monkeypatch, tmp_path, "rlcore_producers", "synchronous")
    values = {"algo": "grpo", "model": "qwen3", "task": "copy"}
    with pytest.raises(PluginError, match="'synchronous' is offered by two plugins"):
        resolve(select(registry, None, Layer(label="", values=values)))


def _with_twice(monkeypatch: pytest.MonkeyPatch, folder: Path, hook: str, name: str) -> Registry:
    """What is installed, and a plugin `twice` that offers a part by the name of another's."""
    info = folder / "rlcore_twice-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rlcore-twice\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rlcore]\ntwice = twice_{name}\n")
    (folder / f"twice_{name}.py").write_text(CLASH.format(hook=hook, name=name))
    monkeypatch.syspath_prepend(str(folder))
    return load(Switches()).registry


def _rival(folder: Path) -> Path:
    file = folder / "rival.py"
    file.write_text(
        "from rlcore.api.hookspecs import hookimpl\n"
        "from rlcore.api.records import Component\n\n\n"
        "@hookimpl\n"
        "def rlcore_generators():\n"
        '    yield Component(name="other", factory="rival:Other", summary="x", default=True)\n'
    )
    return file


def test_a_loss_is_never_a_default(tmp_path: Path) -> None:
    file = _rival(tmp_path)
    file.write_text(file.read_text().replace("rlcore_generators", "rlcore_losses"))
    [broken] = load(Switches(only=("local", "sglang"), files=(file,))).broken
    assert broken.error == "loss 'other': default: no loss is chosen unasked"


def test_a_file_of_prompts_has_no_default_reward(choose: Choose, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    assert choose().chosen("reward") == "token_match"
    assert choose({"data": str(tmp_path / "rows.jsonl")}).chosen("reward") is None


def test_nothing_chosen_is_a_selection_too(plugins: Plugins) -> None:
    selection = select(plugins.registry, None, Layer(label="", values={}))
    assert selection.chosen("task") == "copy"
    assert selection.chosen("generator") == "single_turn"
    assert selection.chosen("algo") is None
    assert selection.chosen("data") is None


def test_flags_are_those_of_the_selected_parts(choose: Choose) -> None:
    found = {flag.name: flag for flag in flags(choose({"filter": ["drop"]}))}
    assert {"steps", "loss.clip", "advantage.center", "filter.drop.below", "source.digits"} <= set(found)
    assert "loss.delta" not in found
    clip, center = found["loss.clip"], found["advantage.center"]
    assert (clip.option, clip.default, clip.group) == ("--loss.clip", "0.3", "loss: clip")
    assert (center.option, center.off_option, center.switch) == (
        "--advantage.center",
        "--no-advantage.center",
        True,
    )
    assert (found["stop"].many, found["stop"].metavar, found["stop"].default) == (True, "TEXT", "none")


def test_the_path_of_a_file_has_no_flag_of_its_own(choose: Choose, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    selection = choose({"data": str(tmp_path / "rows.jsonl")})
    names = {flag.name for flag in flags(selection)}
    assert "source.prompt_key" in names
    assert "source.path" not in names
    assert selection.entries[Kind.SOURCE].record.name == "file"
    with pytest.raises(ConfigError, match=r"^--source\.path is what --data says; leave it out\.$"):
        choose({"data": str(tmp_path / "rows.jsonl"), "source.path": "x"}).settings()


def test_a_family_wins_over_a_folder_of_its_name(
    choose: Choose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    found = choose({"model": "tiny"}).model
    assert found is not None
    assert found.path is None


def test_paths_are_found_again_from_another_folder(
    choose: Choose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").touch()
    settings = choose({"data": "rows.jsonl", "source.eval_path": "held.jsonl"}).settings()
    config = layers.build(FileConfig, settings, "source")
    assert (config.path, config.eval_path) == (str(tmp_path / "rows.jsonl"), str(tmp_path / "held.jsonl"))
