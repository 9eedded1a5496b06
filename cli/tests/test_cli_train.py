"""`rlcore train` up to the point where the runtime takes over."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from program import Program
from refusals import Case, cases

from rlcore_cli import train

PLUGIN = '''
from pydantic import Field
from rlcore.api.part_config import CorrectionConfig, FilterConfig, LossConfig
from rlcore.api.hookspecs import hookimpl
from rlcore.api.records import Algorithm, Component, ModelFamily

class Part: ...

class Clip(LossConfig):
    """Settings."""
    clip: float = Field({clip}, gt=0, description="a bound")
    words: tuple[str, ...] = Field(("a",), description="some words")
    soft: bool = Field(True, description="a switch")

class Far(LossConfig):
    """Settings."""
    delta: float = Field(0.5, gt=0, description="a distance")

class Drop(FilterConfig):
    """Settings."""
    delta: float = Field(0.5, gt=0, description="a distance")

class Fade(CorrectionConfig):
    """Settings."""
    delta: float = Field(0.5, gt=0, description="a distance")

@hookimpl
def rlcore_algorithms():
    yield Algorithm(name="toy", summary="x", paper="", parts={{"advantage": "raw", "loss": "near"}})

@hookimpl
def rlcore_advantages():
    yield Component(name="raw", factory=f"{{__name__}}:Part", summary="x")

@hookimpl
def rlcore_losses():
    yield Component(name="near", factory=f"{{__name__}}:Part", summary="x", config=Clip)
    yield Component(name="far", factory=f"{{__name__}}:Part", summary="x", config=Far)

@hookimpl
def rlcore_generators():
    yield Component(name="single_turn", factory=f"{{__name__}}:Part", summary="x", default=True)

@hookimpl
def rlcore_rewards():
    yield Component(name="token_match", factory=f"{{__name__}}:Part", summary="x", default=True)

@hookimpl
def rlcore_filters():
    yield Component(name="drop", factory=f"{{__name__}}:Part", summary="x", config=Drop)

@hookimpl
def rlcore_corrections():
    yield Component(name="fade", factory=f"{{__name__}}:Part", summary="x", config=Fade)
    yield Component(name="trust", factory=f"{{__name__}}:Part", summary="x")

@hookimpl
def rlcore_trainers():
    yield Component(name="gym", factory=f"{{__name__}}:Part", summary="x", default=True)

@hookimpl
def rlcore_models():
    known = dict(trainer="gym", architectures=("T",), preset="toy:p")
    yield ModelFamily(name="tiny", factory=f"{{__name__}}:Part", summary="x", **known)
'''


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("RLCORE_PLUGINS", "files,tasks,local,sglang,processes,ray,sampling")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.py").write_text(PLUGIN.format(clip=0.2))
    return ["train", "--plugin", "toy.py", "--algo", "toy", "--model", "tiny"]


def test_a_table_that_a_flag_replaces_is_told(base: list[str], tmp_path: Path, program: Program) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[loss]\nname = "near"\nclip = 0.5\n')
    program(*base, "--config", str(file), "--loss", "far", "--dry-run")
    assert f"left out loss.clip of {file}" in program.err
    tables = '[engine]\nname = "sglang"\n[sglang]\ntp_size = 2\n[source]\nlabel_key = "a"\n'
    file.write_text(f'data = "a.jsonl"\n{tables}')
    program(*base, "--config", str(file), "--engine", "local", "--task", "add", "--dry-run")
    assert f"left out sglang.tp_size, source.label_key of {file}" in program.err


def test_help_shows_the_flags_of_what_is_chosen(base: list[str], program: Program) -> None:
    near = program(*base, "--help", "all")
    assert "loss: near:" in near
    assert "--loss.clip FLOAT" in near
    assert "--loss.soft / --no-loss.soft" in near
    assert "--loss.delta" not in near
    far = program(*base, "--loss", "far", "--filter", "drop", "--correction", "fade", "--help", "all")
    assert "--loss.delta FLOAT" in far
    assert "--filter.drop.delta" in far
    assert "--correction.fade.delta" in far
    assert "--loss.clip" not in far
    assert "a distance [0.5]" in far


def test_help_shows_the_common_settings_all_or_one_table(base: list[str], program: Program) -> None:
    common = program(*base, "--help")
    assert len(re.findall("^  --", common, re.MULTILINE)) < 65
    assert "\nsampling:\n  --max-prompt-tokens INT" in common
    for hidden in ("--top-k", "--loss.clip", "--critic.lr", "FIELD"):
        assert hidden not in common
    loss = program(*base, "--help", "loss")
    assert "--entropy-coef" in loss
    assert "--loss.clip" in loss
    assert "--steps" not in loss
    assert "--critic.lr FLOAT" in program(*base, "--help=critic")
    assert "--sglang.FIELD VALUE" in program(*base, "--engine", "sglang", "--help", "sglang")
    assert "--filter.drop.delta" in program(*base, "--filter", "drop", "--help", "filter.drop")
    assert program.refused(*base, "--help", "criti").startswith("--help: found 'criti', expected all, or a ")


SELECTIONS = [
    [],
    ["--loss", "far", "--loss.delta", "2", "--filter", "drop", "--filter.drop.delta=3"],
    ["--no-loss.soft", "--loss.words", "x", "--loss.words", "y z", "--stop", "\n"],
    ["--correction", "fade", "--correction=trust", "--correction.fade.delta", "2", "--value-loss", "none"],
    ["--no-loss.words", "--no-filter", "--no-correction", "--steps=3", "--task", "add"],
    ["--engine.threads", "2", "--seed", "5"],
]


@pytest.mark.parametrize("flags", SELECTIONS)
def test_a_dry_run_feeds_back(base: list[str], flags: list[str], tmp_path: Path, program: Program) -> None:
    text = program(*base, *flags, "--dry-run")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "run.toml").write_text(text)
    assert program("train", "--config", "elsewhere/run.toml", "--dry-run") == text
    as_json = program("train", "--config", "elsewhere/run.toml", "--dry-run", "--json")
    assert json.loads(as_json) == tomllib.loads(text)


def test_a_dry_run_of_an_evaluation_feeds_back(base: list[str], tmp_path: Path, program: Program) -> None:
    sets = ["--eval", "mine=copy", "--task", "reverse", "--samples", "3", "--temperature", "0.5"]
    parts = ["--reward", "token_match=0.5", "--eval.mine.reward", "token_match", "--eval.mine.samples", "5"]
    flags = ["--plugin", "toy.py", "--model", "tiny", *sets, *parts, "--seed", "5", "--run-dir", "out"]
    before = set(tmp_path.iterdir())
    text = program("eval", *flags, "--dry-run")
    assert set(tmp_path.iterdir()) == before
    found = tomllib.loads(text)
    assert {name: one["samples"] for name, one in found["eval"].items()} == {"mine": 5, "reverse": 3}
    assert (found["seed"], found["reward"]) == (5, ["token_match=0.5"])
    (tmp_path / "evals.toml").write_text(text)
    assert program("eval", "--config", "evals.toml", "--dry-run") == text
    assert json.loads(program("eval", *flags, "--dry-run", "--json")) == found


FUNCTIONS = """
def brevity(response): return 1 / (1 + len(response))
def length(response): return len(response)
async def answer(ctx, sample): return sample
"""


def test_a_file_names_functions_beside_itself(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "mine.py").write_text(FUNCTIONS)
    (tmp_path / "project" / "run.toml").write_text(
        'algo = "grpo"\nmodel = "qwen3"\ngenerator = "mine.py:answer"\n'
        '[reward]\nname = ["mine.py:brevity=0.5", "token_match"]\n'
        '[eval.digits]\ntask = "reverse"\nreward = "mine.py:length"\n'
    )
    monkeypatch.chdir(tmp_path)
    text = program("train", "--config", "project/run.toml", "--dry-run")
    found = tomllib.loads(text)
    assert found["plugin"] == [str(tmp_path / "project" / "mine.py")]
    assert found["reward"]["name"] == ["brevity=0.5", "token_match"]
    assert (found["generator"], found["eval"]["digits"]["reward"]) == ("answer", "length")


@pytest.mark.parametrize(
    "line", ['reward = "gone.py:length"', '[eval.a]\ntask = "copy"\nreward = "gone.py:f"']
)
def test_the_file_of_a_function_is_there(line: str, tmp_path: Path, program: Program) -> None:
    (tmp_path / "run.toml").write_text(f'algo = "grpo"\nmodel = "qwen3"\n{line}\n')
    sentence = program.refused("train", "--config", str(tmp_path / "run.toml"), "--dry-run")
    assert sentence == f"{tmp_path}/gone.py: No such file or directory; expected a Python file."


def test_a_dry_run_tells_of_a_factory_that_is_not_there(
    base: list[str], tmp_path: Path, program: Program
) -> None:
    text = (tmp_path / "toy.py").read_text()
    (tmp_path / "toy.py").write_text(text.replace("class Part: ...", "class Parts: ..."))
    for command in (base, ["eval", *base[1:3], "--model", "tiny", "--task", "copy"]):
        assert "toy.py has no 'Part'." in program.refused(*command, "--dry-run")


def test_whose_factory_is_not_there_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    info = tmp_path / "rlcore_ghost-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rlcore-ghost\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[rlcore]\nghost = ghost_of_nowhere\n")
    (tmp_path / "ghost_of_nowhere.py").write_text(
        "from rlcore import Component, hookimpl\n\n\n@hookimpl\ndef rlcore_rewards():\n"
        '    yield Component(name="ghost", summary="A ghost.", factory="nowhere.parts:Ghost")\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    chosen = ["--algo", "grpo", "--model", "qwen3", "--reward", "ghost"]
    assert program.refused("train", *chosen, "--dry-run") == (
        "'ghost' of rlcore-ghost 0.3: its factory is 'nowhere.parts:Ghost', and there is no module "
        "'nowhere.parts'."
    )


ENGINES = ["--ranks", "4", "--engine", "sglang", "--engines"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([*ENGINES, "3", "--sglang.tp-size", "2"], "--placement colocate puts engines on the GPUs of the"),
        ([*ENGINES, "1", "--sglang.tp-size", "3"], "--sglang.tp-size: found 3, but an engine on GPUs"),
        ([*ENGINES, "1", "--sglang.tp-size", "4", "--sglang.nnodes", "3"], "--sglang.nnodes: found 3"),
    ],
)
def test_a_dry_run_refuses_engines_that_no_gpus_hold(
    flags: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    asked = ["train", "--algo", "grpo", "--model", "qwen3", "--dry-run", *flags]
    monkeypatch.setattr(train, "has_gpu_here", lambda: False)
    assert program.refused(*asked).startswith(sentence)
    program(*asked, "--sglang.tp-size", "2", "--sglang.nnodes", "1", "--placement", "split")
    # Where SGLang is, the run is one on this machine, whose CPUs hold any engines.
    python = tmp_path / "python"
    python.write_text("""#!/bin/sh\necho '{"version": "0.5.23"}'\n""")
    python.chmod(0o755)
    here = [*asked, "--engine.python", str(python)]
    if "--sglang.nnodes" in flags:
        assert program.refused(*here).startswith(sentence)
    else:
        program(*here)


def test_a_dry_run_of_engines_on_the_cpu_takes_any_number(program: Program) -> None:
    asked = ["train", "--algo", "grpo", "--model", "qwen3", "--engines", "3", "--dry-run"]
    program(*asked, "--engine", "local", "--engine.device", "cpu")


@cases("cli: train")
def test_a_wrong_command_line(base: list[str], case: Case, tmp_path: Path, program: Program) -> None:
    (tmp_path / "full").mkdir()
    for name, text in {
        "own": 'run_dir = "out"',
        "below": "[loss]\nsteps = 3",
        "quoted": 'steps = "3"',
    }.items():
        (tmp_path / "full" / f"{name}.toml").write_text(text)
    case.check(program.refused(*base, *case.given))
    assert not (tmp_path / "runs").exists()


def test_a_plugin_file_that_cannot_be_imported(base: list[str], tmp_path: Path, program: Program) -> None:
    (tmp_path / "boom.py").write_text("raise RuntimeError('boom')\n")
    found = program.refused(*base, "--plugin", "boom.py")
    assert found == f"{tmp_path / 'boom.py'}: RuntimeError: boom.", found
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("text", ['plugin = "toy.py"', "plugin = [1]"])
def test_a_wrong_list_of_plugins(base: list[str], text: str, tmp_path: Path, program: Program) -> None:
    (tmp_path / "run.toml").write_text(text)
    assert "plugin: found" in program.refused("train", "--config", "run.toml")


@pytest.fixture
def begun(base: list[str], tmp_path: Path, program: Program) -> list[str]:
    """A run folder as far as `--resume` reads it; the command that goes on with it."""
    (tmp_path / "run").mkdir()
    text = program(*base, "--dry-run")
    (tmp_path / "run" / "run.toml").write_text(text)
    return ["train", "--resume", "run", "--dry-run"]


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--steps", "500", "--save-every", "3", "--eval-every", "4", "--keep-checkpoints", "5"],
        ["--engine-concurrency", "3", "--engine-timeout", "9", "--engine.start-limit-s", "5"],
        ["--reward-workers", "2", "--reward-timeout", "3", "--lr", "1e-6"],
        ["--cluster", "ray", "--cluster.address", "10.0.0.1:6379"],
    ],
)
def test_a_resumed_run_may_change_what_leaves_its_past_alone(
    begun: list[str], flags: list[str], program: Program
) -> None:
    program(*begun, *flags)


def test_a_resumed_run_says_which_plugin_is_gone(begun: list[str], tmp_path: Path, program: Program) -> None:
    plugin = {"distribution": "rlcore-medi", "version": "0.1.0", "origin": "rlcore_medi.plugin"}
    start = {"step": 0, "libraries": {}, "plugins": {"medi": plugin}, "code": {}, "data": {}}
    (tmp_path / "run" / "provenance.jsonl").write_text(json.dumps(start) + "\n")
    said = (
        "--resume run: the run uses the plugin 'medi' of rlcore-medi 0.1.0, which is not there; install it."
    )
    assert program.refused(*begun) == said


def test_an_old_run_that_names_no_place_goes_on(begun: list[str], tmp_path: Path, program: Program) -> None:
    """Where a run is that says nothing."""
    file = tmp_path / "run" / "run.toml"
    place = 'cluster = "processes"\n'
    assert place in file.read_text()
    file.write_text(file.read_text().replace(place, ""))
    assert place in program(*begun)


@cases("cli: resume")
def test_a_resumed_run_keeps_its_past(begun: list[str], case: Case, program: Program) -> None:
    case.check(program.refused(*begun, *case.given))


def test_a_dry_run_looks_at_frozen_models(program: Program, tmp_path: Path) -> None:
    """A folder that is not there, and a model that gives scores where tokens are asked for."""
    chosen = ["train", "--algo", "opd", "--model", "qwen3", "--teacher.url", "frozen:judge", "--dry-run"]
    said = program.refused(*chosen, "--frozen", "judge=./nowhere")
    assert "found './nowhere', which is no directory" in said
    config = '{"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1}'
    (tmp_path / "config.json").write_text(config)
    said = program.refused(*chosen, "--frozen", f"judge={tmp_path}")
    assert "it is a Qwen3ForSequenceClassification, which gives scores" in said
    alone = ["eval", "--model", "qwen3", "--task", "copy", "--reward", "judge", "--dry-run"]
    alone += ["--reward.judge.url", "frozen:judge", "--frozen", f"judge={tmp_path}"]
    assert "it is a Qwen3ForSequenceClassification, which gives scores" in program.refused(*alone)


def test_a_table_of_values_takes_a_key_a_flag(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text('{"prompt": [{"role": "user", "content": "1"}], "label": "1"}\n')
    base = ["train", "--algo", "grpo", "--model", "qwen3", "--data", "a.jsonl", "--reward", "exact_match"]
    flags = ["--source.chat-template-kwargs.enable-thinking", "false", "--epochs", "3"]
    text = program(*base, *flags, "--source.chat-template-kwargs.style=plain", "--dry-run")
    settings = tomllib.loads(text)
    assert settings["source"]["chat_template_kwargs"] == {"enable_thinking": False, "style": "plain"}
    assert settings["epochs"] == 3
    assert "steps" not in settings
    Path("run.toml").write_text(text)
    assert program("train", "--config", "run.toml", "--dry-run") == text
    longer = tomllib.loads(program("train", "--config", "run.toml", "--steps", "7", "--dry-run"))
    assert longer["steps"] == 7
    assert "epochs" not in longer
