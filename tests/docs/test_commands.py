"""rlcore accepts every `rlcore train` of the documentation, beside the files that it names, as a dry run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlcore_cli.main import run
from rlcore_qwen.tiny import tiny

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\s*(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?rlcore (?=train )(.*)$", re.MULTILINE)
SKIPPED = re.compile(r"--resume|--reward (brevity|nines)\b|^train …  ")
"""Of a run that is there already; a part of the package that the reader has just installed; a picture."""
PRESETS = ("qwen3", "llama", "glm", "deepseek")
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


def commands() -> Iterator[tuple[str, str]]:
    """(page, arguments) of each `rlcore train` in a code block; `…` stands for flags of the reader's own."""
    for page in PAGES:
        for language, body in FENCE.findall(page.read_text()):
            if language in ("", "sh", "bash"):
                for line in COMMAND.findall(re.sub(r"\\\n\s*", " ", body)):
                    if not SKIPPED.search(line):
                        yield page.relative_to(ROOT).as_posix(), line


def blocks() -> dict[str, str]:
    """The Python files that the pages show: a block that begins with `# name.py`."""
    texts = [
        body for page in PAGES for language, body in FENCE.findall(page.read_text()) if language == "python"
    ]
    return {match[1]: text for text in texts if (match := re.match(r"# ([\w/]+\.py)\b", text))}


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
    args += [] if "--model" in given else ["--model", "qwen3"]
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


@pytest.mark.parametrize(("page", "line"), sorted(set(commands())))
def test_a_command_of_the_documentation_is_accepted(
    page: str,
    line: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name, text in blocks().items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    code = run([*prepared(line, model), "--dry-run"])
    assert code == 0, capsys.readouterr().err


def test_the_documentation_has_commands() -> None:
    assert len(set(commands())) > 40
