"""An engine that rlcore does not know, installed as a wheel, trains through an unchanged core."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import Command

PACKAGE = Path(__file__).with_name("package")
LIMIT_S = 280.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel, built outside of the tree."""
    root = tmp_path_factory.mktemp("third")
    source = shutil.copytree(PACKAGE, root / "source")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--target", root / "site", source], check=True, timeout=LIMIT_S)
    return root / "site"


def train(cwd: Path, *flags: str, **known: Any) -> Command:
    command = Command("train", "--algo", "grpo", "--model", "qwen3", *flags, cwd=cwd, **known)
    try:
        command.wait(LIMIT_S)
    finally:
        command.stop()
    return command


@pytest.mark.full
def test_it_trains_the_demo(site: Path, tmp_path: Path) -> None:
    flags = ("--engine", "openai", "--openai.seed-offset", "7", "--steps", "2", "--eval-every", "0")
    small = ("--prompts-per-step", "4", "--eval-prompts", "2")
    asked = ("--run-dir", str(tmp_path / "run"), *flags, *small)
    done = train(tmp_path, *asked, packages=[str(site)], env={"PYTHONPATH": str(site)})
    assert done.wait() == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "train/kl_engine_max" in line]
    assert len(steps) == 2
    assert all(line["train/kl_engine_max"] < 1e-4 for line in steps), (
        "trainer and engine agree, after publications too"
    )
    assert '[openai]\nseed_offset = "7"' in (tmp_path / "run" / "run.toml").read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--engine", "openai_bare"), "--engine openai_bare: it gives no log-probs of the tokens"),
        (("--engine", "openai", "--max-staleness", "1"), "takes new weights only while no request"),
        (
            ("--engine", "openai", "--partial-rollouts", "--max-staleness", "1"),
            "--partial-rollouts: the engine 'openai' cannot end a request that is under way; leave it out.",
        ),
        (
            ("--engine", "openai", "--sleep", "all"),
            "--sleep: found all, but the engine 'openai' cannot give its memory back while the trainer works",
        ),
        (("--engine", "openai", "--openai.seeds", "1"), "--openai.seeds: found '1', expected seed_offset"),
        (("--openai.seed-offset", "1"), "--openai.seed-offset needs --engine openai"),
    ],
)
def test_what_it_lacks_is_said_before_the_run(
    site: Path, tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    done = train(tmp_path, *flags, packages=[str(site)])
    assert done.wait() == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
