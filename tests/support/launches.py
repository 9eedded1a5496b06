"""A server that a run could want, for tests of its command."""

from typing import Any

from rlcore.api.engine import EngineLaunch

TOKEN = "secret-of-the-run"


def launch(**changes: Any) -> EngineLaunch:
    """With `changes` in the place of what every test takes."""
    given: dict[str, Any] = {
        "model_path": "/models/tiny",
        "host": "127.0.0.1",
        "port": 31000,
        "token": TOKEN,
        "dtype": "fp32",
        "context_length": 256,
        "seed": 3,
        "weights_dir": "/weights",
        "log_path": "/run/engine.log",
    }
    return EngineLaunch(**{**given, **changes})
