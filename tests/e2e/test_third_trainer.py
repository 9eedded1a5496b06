"""A trainer from outside the workspace, as `rlcore new trainer` makes it, learns the demo as a wheel.

Its own tests hold it to the suite of trainers: tests/packaging/test_release.py runs them.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from command import SMALL, Run, rows

from rlcore_new.package import write_package

PLAIN = ("--trainer", "plain", "--engine", "local")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the trainer, installed from a wheel."""
    root = tmp_path_factory.mktemp("third_trainer")
    write_package("trainer", "plain", "Apache-2.0", root / "rlcore-plain")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run(
        [*pip, "wheel", *offline, "-w", str(root), str(root / "rlcore-plain")], check=True, timeout=120
    )
    [wheel] = root.glob("*.whl")
    install = [*pip, "install", "--no-deps", "--no-index", "--target", str(root / "site"), str(wheel)]
    subprocess.run(install, check=True, timeout=120)
    return root / "site"


@pytest.mark.timeout(900)
def test_it_learns_the_demo_without_the_bundled_trainer(run: Run, site: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "run", tmp_path / "model"
    demo = ("--algo", "grpo", "--model", "qwen3", *PLAIN)
    run("train", *demo, "--run-dir", str(folder), "--export", str(out), packages=[str(site)], limit=800)
    assert rows(folder)[-1]["eval/copy/score"] > 0.9
    assert 'name = "plain"' in (folder / "run.toml").read_text()
    assert (out / "model.safetensors").is_file()


@pytest.mark.timeout(600)
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(run: Run, site: Path, tmp_path: Path) -> None:
    small = ("train", "--algo", "grpo", "--model", "qwen3", *PLAIN, *SMALL)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    found = {"PYTHONPATH": str(site)}  # by Ray's processes
    run(*small, "--steps", "4", "--run-dir", str(whole), packages=[str(site)], env=found, ray=True)
    run(*small, "--steps", "2", "--run-dir", str(parts), packages=[str(site)])
    run("train", "--resume", str(parts), "--steps", "4", packages=[str(site)])
    losses = [[row["train/loss"] for row in rows(folder) if "train/loss" in row] for folder in (whole, parts)]
    assert losses[0] == losses[1]


def test_what_it_lacks_is_one_sentence_before_the_run(run: Run, site: Path) -> None:
    flags = ("--algo", "ppo", "--model", "qwen3", "--trainer", "plain")
    done = run("train", *flags, code=2, packages=[str(site)])
    assert (
        "--advantage: found 'gae', which reads a critic, but the trainer 'plain' has no critic" in done.stderr
    )
