"""The set-up of a machine without a GPU: a CPU build of torch, or one sentence that says what to set."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "setup_venv.py"


def wheel(folder: Path, name: str, version: str, *requires: str) -> None:
    """A distribution without code."""
    headers = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {one}" for one in requires)]
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", "\n".join(["Metadata-Version: 2.1", *headers, ""]))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="session")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("setup") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=200)
    return folder


def set_up(venv: Path, index: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "TORCH_"))},
        "PATH": str(index),  # no nvidia-smi there
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "TORCH_INDEX": str(index),
    }
    command = [sys.executable, str(SCRIPT), str(venv), "-r", "requirements.txt"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.full
def test_a_cuda_build_is_refused_without_a_gpu(venv: Path, tmp_path: Path) -> None:
    wheel(tmp_path, "torch", "2.13.0", "nvidia_cublas")
    wheel(tmp_path, "nvidia_cublas", "13.0")
    done = set_up(venv, tmp_path)
    assert done.returncode == 1
    sentence = done.stderr.splitlines()[-1]
    assert sentence.startswith("setup: There is no GPU here, and the torch==2.13.0 that pip would install")
    assert "set TORCH_INDEX" in sentence
    assert not list(venv.glob("lib/python3*/site-packages/torch*"))


def test_a_torch_that_pip_cannot_find_is_one_sentence(venv: Path, tmp_path: Path) -> None:
    done = set_up(venv, tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("setup: pip install torch==2.13.0 failed")


def test_an_old_python_is_one_sentence(tmp_path: Path) -> None:
    old = (
        "import runpy, sys; sys.version_info = (3, 10, 4); "
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", old, str(SCRIPT), str(tmp_path / "venv")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("setup: Python 3.11 or newer is needed, and ")
    assert not (tmp_path / "venv").exists()
