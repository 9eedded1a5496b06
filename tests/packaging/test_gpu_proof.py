"""`scripts/gpu_proof.py` on a CPU: its list, its quickest pieces, what it keeps, what a failure leaves."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import gpu_kit
import gpu_pieces
import pytest

ROOT = Path(__file__).resolve().parents[2]


def proof(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "gpu_proof.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_the_list_names_every_piece() -> None:
    lines = proof("--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(gpu_pieces.PIECES)
    assert "there is no piece 'atention': choose from demo," in proof("atention").stderr


@pytest.mark.full
def test_pieces_run_here_and_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLCORE_SGLANG_PYTHON", raising=False)
    pieces = ("attention", "fit", "ipc", "recompute", "sglang")
    done = proof("--out", tmp_path, *pieces)
    assert done.returncode == 0, done.stdout
    found = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in pieces}
    assert found["attention"]["figures"]["dq"] < 1e-5
    kept = found["recompute"]["figures"]
    assert kept["saved, bytes"] == pytest.approx(kept["saved, planned bytes"], rel=0.05)
    if found["ipc"]["machine"]["card"] == "CPU":
        assert found["ipc"]["figures"]["by"] == "shared memory"
        assert found["fit"]["figures"]["model"] == "qwen3-1.7b", "the largest for 80 GB with Adam on the card"
    if found["sglang"]["machine"]["sglang"] is None:
        assert found["sglang"]["status"] == "skipped"
        assert found["sglang"]["why"] == "SGLang is not installed"
    again = proof("--out", tmp_path, *pieces)
    assert again.stderr == "", "nothing ran a second time"
    assert again.stdout == done.stdout == (tmp_path / "summary.md").read_text()


def test_a_piece_without_an_end_fails_and_the_next_one_runs(tmp_path: Path) -> None:
    done = proof("--out", tmp_path, "--seconds", "0.1", "sleep", "trl")
    assert done.returncode == 1
    assert done.stdout.count("failed") == 2
    assert json.loads((tmp_path / "sleep.json").read_text())["why"] == "no end after 0.1 s"


TABLE = """noise
| case | trainer | s a step |
| --- | --- | --- |
| tiny: 32 prompts | TRL, 4 micro-batches | 1.2 |
| tiny: 32 prompts | rlcore | 0.6 |
"""


def _done(code: int, out: str) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(["vs_trl.py"], code, out, "SystemExit: no wheel")


def test_a_benchmark_that_fails_or_says_nothing_fails_its_piece() -> None:
    assert len(gpu_pieces._table(_done(0, TABLE))) == 4
    with pytest.raises(AssertionError, match="exit code 1: SystemExit: no wheel"):
        gpu_pieces._table(_done(1, TABLE))
    with pytest.raises(AssertionError, match="no table of both sides"):
        gpu_pieces._table(_done(0, TABLE.replace("| rlcore", "| TRL")))
    with pytest.raises(AssertionError, match="no table of both sides"):
        gpu_pieces._table(_done(0, "noise"))


def _wheel(folder: Path) -> Path:
    """Of a package `one`, which says 1."""
    folder.mkdir()
    path = folder / "one-1.0-py3-none-any.whl"
    about = {
        "one.py": "print(1)\n",
        "one-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: one\nVersion: 1.0\n",
        "one-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    names = [*about, "one-1.0.dist-info/RECORD"]
    with zipfile.ZipFile(path, "w") as file:
        for name, text in about.items():
            file.writestr(name, text)
        file.writestr(names[-1], "".join(f"{name},,\n" for name in names))
    return path


def test_a_kit_in_parts_installs_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_kit, "MOST", 300)
    wheel = _wheel(tmp_path / "wheels")
    assert gpu_kit.seal(tmp_path) == 1
    parts = sorted((tmp_path / "wheels").iterdir())
    assert len(parts) > 2
    assert max(part.stat().st_size for part in parts) == gpu_kit.MOST

    def install() -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHON": sys.executable, "PIP_NO_INDEX": "1"}
        command = ["sh", str(tmp_path / "install.sh")]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)

    done = install()
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(gpu_pieces.PIECES), done.stderr
    python = tmp_path / "venv" / "bin" / "python"
    assert subprocess.run([python, "-c", "import one"], capture_output=True, text=True).stdout == "1\n"
    parts[1].write_bytes(bytes(300))
    damaged = install()
    assert damaged.returncode
    assert f"{wheel.name}: FAILED" in damaged.stdout
