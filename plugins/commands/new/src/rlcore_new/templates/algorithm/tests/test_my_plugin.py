"""The recipe names parts that are installed, and settings that there are."""

import subprocess
import sys
from pathlib import Path


def test_a_run_by_the_recipe_would_start(tmp_path: Path) -> None:
    """`--dry-run` resolves and checks everything, and starts nothing."""
    command = "import sys; from rlcore_cli.main import run; sys.exit(run(sys.argv[1:]))"
    flags = ["train", "--algo", "my_plugin", "--model", "qwen3", "--dry-run"]
    done = subprocess.run(
        [sys.executable, "-c", command, *flags],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "group_size = 16" in done.stdout
    assert "clip_high = 0.28" in done.stdout
