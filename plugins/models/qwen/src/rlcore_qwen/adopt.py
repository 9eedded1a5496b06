"""MiMo, whose decoder is Qwen2's, without the code that comes with it."""

import json
from pathlib import Path

from rlcore_toolkit import readable_copy

CONFIG = "config.json"


def mimo(path: str, cache: Path | None) -> str:
    """The directory `path`, or a copy whose config.json has the type that transformers knows.

    `architectures` stays: an engine that has MiMo's draft finds it by that.
    """
    if json.loads((Path(path) / CONFIG).read_text()).get("model_type") != "mimo":
        return path
    return str(readable_copy(path, {CONFIG: {"model_type": "qwen2"}}, cache))
