"""Every block of Python, TOML and JSON in the documentation is run, or read by what it is for."""

import json
import runpy
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pages
import pytest
from packaging.requirements import Requirement

import rlcore
from rlcore.learning.batch_file import save_batch
from rlcore_cli.from_python import OF_FUNCTIONS, arguments
from rlcore_cli.function_source import write_functions
from rlcore_cli.main import run
from rlcore_new.package import write_package
from rlcore_testing.tensors import scored

PYTHON = pages.blocks("python")
STAND_INS = {
    "my_package/__init__.py": "",
    "my_package/config.py": "from rlcore_text.config import ExactMatchConfig as MyConfig\n",
    "acme/__init__.py": "",
    "acme/config.py": "from rlcore_grpo.config import CispoConfig as MyLossConfig\n",
    "acme/loss.py": "from rlcore_grpo.loss import Cispo as MyLoss\n",
    "acme/generator.py": "class MyConfig: ...\nclass MyGenerator:\n    def __init__(self, config): ...\n",
}
"""What stands for the reader's own package, which pages import."""


class Policy(BaseHTTPRequestHandler):
    """Answers one request as an endpoint of OpenAI's protocol."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["messages"] == [{"role": "user", "content": "copy 12="}]
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "12"}}
        answer = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "policy",
            "choices": [choice],
        }
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a run gives to the program that it trains."""
    server = HTTPServer(("127.0.0.1", 0), Policy)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    task = tmp_path / "task.json"
    task.write_text('{"messages": [{"role": "user", "content": "copy 12="}]}')
    monkeypatch.setenv("RLCORE_TASK_FILE", str(task))
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "token")
    yield
    server.shutdown()
    thread.join(10)
    server.server_close()


def write_run(folder: Path) -> None:
    """The folder of a run, as far as the pages read it."""
    (folder / "samples").mkdir(parents=True)
    (folder / "run.toml").write_text('algo = "grpo"\n')
    (folder / "metrics.jsonl").write_text('{"step": 1, "rollout/reward_mean": 0.5}\n')
    (folder / "samples/eval-1.jsonl").write_text('{"prompt": "1=", "response": "1", "score": 1.0}\n')
    save_batch(scored([1.0, 0.0], [0, 0]), folder / "rollouts/3.safetensors")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder: a package, a run, rows of verl. `rlcore.train` checks what it is given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in STAND_INS.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    for name in ("brevity", "nines"):
        write_package("reward", name, "MIT", tmp_path / name)
        monkeypatch.syspath_prepend(str(tmp_path / name / "src"))
    transformers = import_module("transformers")  # as imports find it now: tests of bridges replace it
    monkeypatch.setattr(transformers, "AcmeConfig", transformers.LlamaConfig, raising=False)
    for folder in ("first", "whole"):
        write_run(tmp_path / folder)
    monkeypatch.setattr(rlcore, "train", lambda **settings: trained(settings, tmp_path))
    return tmp_path


def trained(settings: dict[str, Any], folder: Path) -> rlcore.Run:
    """A run that is there already, once the program has accepted `settings` as a dry run."""
    given = write_functions(settings, OF_FUNCTIONS, folder)
    assert run(["train", *arguments(given), "--dry-run"]) == 0
    return rlcore.Run(folder / "first", {"eval": {"copy": 1.0}})


@pytest.mark.parametrize("number", range(len(PYTHON)), ids=lambda number: f"{PYTHON[number].page}-{number}")
def test_a_block_of_python_runs(number: int, here: Path, endpoint: None) -> None:
    """From its first line to its last, by itself: what it imports is there, and has the names."""
    file = here / f"block_{number}.py"
    file.write_text(PYTHON[number].text)
    assert runpy.run_path(str(file))


def test_no_block_of_python_uses_a_name_that_it_does_not_have(tmp_path: Path) -> None:
    for number, block in enumerate(PYTHON):
        (tmp_path / f"{block.page.replace('/', '_')}_{number}.py").write_text(block.text)
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", "--ignore", "F401", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout


def test_a_suite_of_a_page_is_made_as_the_page_makes_it(here: Path) -> None:
    """The classes that a plugin's tests derive from are abstract: the page overrides what they ask for."""
    for block in PYTHON:
        if block.file.startswith("tests/"):
            file = here / Path(block.file).name
            file.write_text(block.text)
            (suite,) = (one for name, one in runpy.run_path(str(file)).items() if name.startswith("Test"))
            assert not getattr(suite, "__abstractmethods__", None)
            (makes,) = {"loss", "generator"} & set(vars(suite))
            assert getattr(suite(), makes)()


def test_the_source_of_a_page_grows(here: Path) -> None:
    (block,) = (block for block in PYTHON if block.file == "harder.py")
    Path("harder.py").write_text(block.text)
    found = runpy.run_path("harder.py")
    source = found["Harder"](None)
    cursor = source.cursor(source.prompts().train, 0)
    cursor.take(12)
    cursor.learn("copy-0", [1.0, 1.0])
    ((prompt, epoch),) = cursor.take(1)
    assert (prompt.text, prompt.label, epoch) == ("copy 12=", "12", 0)
    again = source.cursor(source.prompts().train, 0)
    again.load(cursor.state())
    assert again.take(3) == cursor.take(3)


@pytest.mark.parametrize("block", pages.blocks("toml"), ids=lambda block: block.page)
def test_a_block_of_toml_is_a_run(
    block: pages.Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its settings are those of a run, once it has the choices that it lacks; or it is of a pyproject."""
    monkeypatch.chdir(tmp_path)
    values = tomllib.loads(block.text)
    if "dependencies" in values:
        assert all(Requirement(one).specifier for one in values["dependencies"])
        return
    (tmp_path / "math.jsonl").write_text('{"prompt": "1=", "label": "1"}\n')
    (mine,) = (block for block in PYTHON if block.file == "mine.py")
    (tmp_path / "mine.py").write_text(mine.text)
    (tmp_path / "run.toml").write_text(block.text)
    args = [] if "algo" in values else ["--algo", "grpo", "--model", "qwen3"]
    args += ["--engine", "sglang"] if "engine_group" in values else []
    args += ["--max-response-tokens", "64"] if "megatron" in values else []
    assert run(["train", "--config", "run.toml", *args, "--dry-run"]) == 0, capsys.readouterr().err
    printed = tomllib.loads(capsys.readouterr().out)
    assert set(values) <= set(printed)


REWARDS_OF = {"reward": ["exact_match", "format"], "instruction_id_list": ["ifeval"]}
"""Which rewards a row is for, by a key that it has; otherwise its label tells."""


@pytest.mark.parametrize("block", pages.blocks("json"), ids=lambda block: f"{block.page}: {block.text[:30]}")
def test_a_block_of_json_is_data(
    block: pages.Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that a run takes for the rewards that they are for, or what a server of rewards is asked."""
    monkeypatch.chdir(tmp_path)
    rows, text = [], block.text
    while text.strip():
        row, end = json.JSONDecoder().raw_decode(text.strip())
        rows.append(row)
        text = text.strip()[end:]
    if "response" in rows[0]:
        assert set(rows[0]) == {"prompt", "response", "label", "metadata", "status"}
        return
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = {*rows[0], *rows[0].get("metadata", {})}
    of_label = ["exact_match"] if isinstance(rows[0].get("label"), str) else ["code"]
    rewards = next((names for key, names in REWARDS_OF.items() if key in keys), of_label)
    args = [flag for name in rewards for flag in ("--reward", name)]
    args += ["--algo", "grpo", "--model", "qwen3", "--data", "rows.jsonl", "--prompts-per-step", "1"]
    args += ["--source.chat-template"] if any(isinstance(row["prompt"], list) for row in rows) else []
    assert run(["train", *args, "--dry-run"]) == 0, capsys.readouterr().err


def test_the_documentation_has_blocks() -> None:
    assert len(PYTHON) > 30
    assert len(pages.blocks("toml")) > 6
    known = {"", "python", "toml", "json", "text"}
    assert {language for page in pages.PAGES for language in pages.languages(page)} <= known


def test_scores_of_a_page(here: Path) -> None:
    """Functions that a page shows give what it says."""
    files = {block.file: block.text for block in PYTHON if block.file}
    Path("score.py").write_text(files["score.py"])
    compute_score = runpy.run_path("score.py")["compute_score"]
    assert [compute_score("x", text, "72") for text in ("so 72", "so 7", "")] == [1.0, 0.0, 0.0]
    Path("rewards.py").write_text(files["rewards.py"])
    terse = runpy.run_path("rewards.py")["terse"]
    assert terse(completions=[[{"role": "assistant", "content": "abc"}]]) == [0.25]
