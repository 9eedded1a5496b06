"""`rlcore plan --config`, on 80 GB GPUs."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlcore_cli.main import run


@pytest.fixture
def judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """`judged(toml, *arguments)`: the JSON of the plan, or of its error."""

    def judged(toml: str, *args: str) -> Any:
        file = tmp_path / "run.toml"
        file.write_text(toml)
        code = run(["plan", "--config", str(file), "--gpu-memory", "80", "--json", *args])
        found = json.loads(capsys.readouterr().out)
        assert code == (2 if "error" in found else 0 if found["fits"] else 1)
        return found

    return judged
