"""Tiny configs of architectures that have no bridge."""

import json
from pathlib import Path
from typing import Any

_TABLES: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
BASE: dict[str, Any] = _TABLES["base"]
ARCHITECTURES: dict[str, dict[str, Any]] = _TABLES["configs"]
"""model_type → what its config has beside `BASE`."""
PADDED: list[str] = _TABLES["padded"]
"""Those that read a row for each sequence; the others read packs."""
REFUSED: dict[str, str] = _TABLES["refused"]
"""Those that the trainer refuses, and what it says."""
