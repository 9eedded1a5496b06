"""A streamed mix with a curriculum and evaluations of their own: killed, resumed, the same; then alone."""

import json
import os
import signal
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from command import SMALL, Run, Start, gone, rows, untimed, wait_for
from documented import undocumented
from transformers import AutoTokenizer

from rlcore_testing.reward_models import make_reward_model, reference_scores

LONG_S = 600.0
REWARDS = """
def digits(response, label): return float(sum(character.isdigit() for character in label))
"""
SETS = """
model = "qwen3"
prompts = 4

[eval.function]
task = "copy"
reward = "rewards.py:digits"

[eval.server]
task = "reverse"

[eval.server.reward]
name = "remote"
url = "{url}/score"

[eval.chat]
data = "{chat}"

[eval.chat.reward]
name = "judge"
url = "{url}/v1"
model = "judge"
"""


class Judge(BaseHTTPRequestHandler):
    """Scores a quarter, and judges with 5 of 10."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "Score: 5"}
        is_chat = self.path == "/v1/chat/completions"
        answer = {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
        body = json.dumps(answer if is_chat else {"score": 0.25}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""


@pytest.fixture
def judge() -> Iterator[str]:
    """The URL of one."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(10)
    server.server_close()


@pytest.mark.parametrize("command", ["eval", "train"])
def test_each_set_has_a_reward_of_its_own(run: Run, judge: str, tmp_path: Path, command: str) -> None:
    """A function of a file, a server's and a judge's; alone and in a run."""
    chat = tmp_path / "chat.jsonl"
    row = {"prompt": [{"role": "user", "content": "12="}], "label": "12"}
    chat.write_text(json.dumps(row) + "\n")
    (tmp_path / "rewards.py").write_text(REWARDS)
    text = SETS.format(url=judge, chat=chat)
    if command == "train":
        text = text.replace("prompts = 4", "steps = 1\neval_prompts = 4\nmax_prompt_tokens = 64")
    (tmp_path / "sets.toml").write_text(text)
    own = ("--algo", "grpo", *SMALL) if command == "train" else ()
    done = run(command, "--config", str(tmp_path / "sets.toml"), *own, "--json", limit=LONG_S)
    found = json.loads(done.stdout)["eval"]
    scores = {name: one["score"] if command == "eval" else one for name, one in found.items()}
    assert {name: scores[name] for name in ("function", "server", "chat")} == {
        "function": 4.0,
        "server": 0.25,
        "chat": 0.5,
    }


def write(path: Path, start: int, count: int) -> str:
    lines = (json.dumps({"prompt": f"{n:04d}=", "label": f"{n:04d}"}) for n in range(start, start + count))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.timeout(2400)
def test_a_mix_with_a_curriculum_resumes_exactly(run: Run, start: Start, tmp_path: Path) -> None:
    low, high, held = (write(tmp_path / f"{i}.jsonl", 3000 * i, 24) for i in range(3))
    settings = [
        *("train", "--algo", "grpo", "--model", "qwen3", "--reward", "token_match", "--no-filter"),
        *("--data", f"low={low}:3", "--data", f"high={high}[:16]", "--source.streaming", "--curriculum"),
        *("--curriculum-solved-at", "0.2", "--prompts-per-step", "8", "--group-size", "4", "--steps", "6"),
        *("--eval", f"held={held}", "--eval.held.samples", "4", "--eval.held.temperature", "1"),
        *("--eval.held.reward", "exact_match", "--eval", "backwards=reverse", "--eval-prompts", "8"),
        *("--eval-every", "3", "--save-every", "2"),
    ]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(*settings, "--run-dir", str(whole), limit=LONG_S)
    command = start(*settings, "--run-dir", str(broken))
    wait_for(lambda: (broken / "checkpoints" / "2" / "complete.json").is_file(), alive=command, limit=LONG_S)
    children = command.descendants()
    os.kill(command.process.pid, signal.SIGKILL)
    command.wait()
    gone(children, limit=60)
    rows_of_low = Path(low).read_text()
    Path(low).write_text(rows_of_low.replace("0007", "0008"))
    refused = run("train", "--resume", str(broken), limit=LONG_S, code=2)
    assert f"{low}: its content has changed since the run was started" in refused.stderr
    Path(low).write_text(rows_of_low)
    run("train", "--resume", str(broken), limit=LONG_S)
    assert untimed(broken) == untimed(whole)
    metrics = rows(whole)
    assert not undocumented({key for row in metrics for key in row})
    assert {"eval/held/pass@4", "eval/held/avg@4", "eval/backwards/score"} <= set(metrics[3])
    assert {"rollout/prompts_skipped", "rollout/epoch/high"} <= set(metrics[-1])
    assert metrics[-1]["rollout/epoch/low"] >= 36 / 24
    assert tomllib.loads((whole / "run.toml").read_text())["eval"]["held"]["samples"] == 4
    saved = [json.loads(line) for line in (whole / "samples" / "eval-6.jsonl").read_text().splitlines()]
    assert [sum(row["set"] == name for row in saved) for name in ("held", "backwards")] == [32, 8]

    asks_a_frozen_model(run, held, whole / "model", tmp_path / "rewards")


def asks_a_frozen_model(run: Run, data: str, model: Path, rewards: Path) -> None:
    """An evaluation alone serves what its reward asks."""
    make_reward_model(rewards)
    frozen = (
        "--frozen",
        f"rm={rewards}",
        "--reward",
        "reward_model",
        "--reward.reward-model.url",
        "frozen:rm",
    )
    limits = ("--prompts", "8", "--max-prompt-tokens", "16", "--max-response-tokens", "16")
    own = ("--rollout-workers", "1", "--json")
    alone = run("eval", "--model", str(model), "--data", data, *frozen, *limits, *own, limit=LONG_S)
    found = json.loads(alone.stdout)
    assert found["prompts"] == {"set_2": 8}
    assert not undocumented(f"eval/set/{name}" for name in found["eval"]["set_2"])
    lines = [json.loads(line) for line in (alone.out.parent / found["samples"]).read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(rewards)
    texts = [f"<user>{line['prompt']}<end><assistant>{line['response']}<end>" for line in lines]
    wanted = reference_scores(rewards, [tokenizer.encode(text, add_special_tokens=False) for text in texts])
    assert [line["score"] for line in lines] == pytest.approx([one for (one,) in wanted], abs=1e-6)
