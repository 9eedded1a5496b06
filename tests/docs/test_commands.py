"""rlcore accepts every command of the documentation: `rlcore train` as a dry run, with the files it names."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pages
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlcore_cli.main import run
from rlcore_qwen.tiny import tiny

SKIPPED = re.compile(r"--resume|--reward (brevity|nines)\b|\bNAME\b|^…?( *$| +[^-])")
"""Of a run that is there already; a part of the package that the reader has just installed; no command."""
INSTALLED = re.compile(r"\b(brevity|nines|acme|NAME)\b")
"""What `rlcore plugins` is asked about in the pages: a part of the reader's own."""
PRESETS = ("qwen3", "llama", "glm", "deepseek", "qwen3-8b", "qwen3-32b", "qwen3-235b-a22b")
OF_MODELS = ("--model", "--teacher-model", "--reference-model", "--critic-model")
ROW = {
    "prompt": "12",
    "question": "12",
    "label": "12",
    "answer": "12",
    "response": "12",
    "chosen": "12",
    "rejected": "21",
    "messages": [{"role": "user", "content": "12"}, {"role": "assistant", "content": "12"}],
    "metadata": {"weight": 1.0, "difficulty": 1},
}
"""A row with every key that the pages name."""


TRAIN, OTHERS = (
    sorted({(page, line) for page, line in pages.commands() if line.startswith("train ") == wanted})
    for wanted in (True, False)
)
TRAINED = [(page, line) for page, line in TRAIN if not SKIPPED.search(line.removeprefix("train "))]
FOR_REAL = re.compile(r"plan --model qwen|import slime --|plugins( show .*)?$|new ")
"""What is quick and needs nothing. Of other commands, rlcore reads the flags and shows its help."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stands for the models that the reader has."""
    folder = tmp_path_factory.mktemp("model")
    tiny(folder)
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 40960}
    (folder / "config.json").write_text(json.dumps(config))
    classifier = folder / "classifier"
    classifier.mkdir()
    for file in folder.glob("*.json"):
        (classifier / file.name).write_text(file.read_text())
    config |= {"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1, "id2label": {"0": "x"}}
    (classifier / "config.json").write_text(json.dumps(config))
    return folder


def write_data(name: str) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**ROW, "prompt": f"{number:03d}"} for number in range(64)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)


def prepared(line: str, model: Path) -> list[str]:
    """The arguments with the reader's files made, and the model's folder for models that are not here."""
    args = shlex.split(line, comments=True)
    if "…" in args:
        args = [args[0], "--algo", "grpo", "--model", "qwen3", *(arg for arg in args[1:] if arg != "…")]
    given = {arg.partition("=")[0] for arg in args}
    args += [] if {"--model", "--config"} & given else ["--model", "qwen3"]
    if any(arg.startswith("--sglang.") for arg in args) and "--engine" not in given:
        args += ["--engine", "sglang"]  # the default where there is a GPU
    for place, arg in enumerate(args):
        before = args[place - 1]
        if before in OF_MODELS and arg not in PRESETS:
            args[place] = str(model)
        elif before == "--frozen":
            name = arg.partition("=")[0]
            args[place] = f"{name}={model / 'classifier' if name == 'rm' else model}"
        elif match := re.fullmatch(r"(?:\w+=)?([\w/]+\.(?:jsonl|parquet))(?:[\[:].*)?", arg):
            write_data(match[1])
    return args


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the Python files that the pages show."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for block in pages.blocks("python"):
        if block.file:
            Path(block.file).parent.mkdir(exist_ok=True)
            Path(block.file).write_text(block.text)
    Path("run.toml").write_text('algo = "grpo"\nmodel = "qwen3"\ntask = "copy"\n')
    Path("evals.toml").write_text('[eval.math]\ntask = "reverse"\n')


@pytest.mark.parametrize(("page", "line"), TRAINED)
def test_a_run_of_the_documentation_is_accepted(
    page: str, line: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run([*prepared(line, model), "--dry-run"])
    assert code == 0, capsys.readouterr().err


@pytest.mark.parametrize(("page", "line"), OTHERS)
def test_another_command_of_the_documentation_is_accepted(
    page: str, line: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if line.startswith("plugins "):
        line = INSTALLED.sub("exact_match", line)
    line = line.replace("KIND", "reward").replace("NAME", "brevity")
    args = prepared(line, model) if line.startswith("eval --") else shlex.split(line, comments=True)
    code = run(args if FOR_REAL.match(line) else [*args, "--help"])
    assert code == 0, capsys.readouterr().err


def test_the_documentation_has_commands() -> None:
    assert len(TRAINED) > 100
    assert len(OTHERS) > 50
