"""Programs that a test starts and waits for."""

import subprocess
from pathlib import Path
from typing import Any


def ran(*command: str | Path, limit_s: float = 120.0, **options: Any) -> "subprocess.CompletedProcess[str]":
    """The end of a program, with what it wrote, whatever its exit code; `options`: of `subprocess.run`."""
    given: dict[str, Any] = {"capture_output": True, "text": True, "check": False, **options}
    done: subprocess.CompletedProcess[str] = subprocess.run([*map(str, command)], timeout=limit_s, **given)
    return done
