"""The state of a run beside the model: JSON in every checkpoint."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from rlcore.api.errors import CheckpointError
from rlcore.api.types import parse_json

FORMAT = 4
FILE = "state.json"


@dataclass(frozen=True, kw_only=True)
class RunState:
    """`step` steps are done; engines hold weight version `version`; `producer` is the cursor and the buffer.

    `model`: what the checkpoint's weights are (sizes of its architecture, dtype), compared at resume.
    `callbacks`: what each of them goes on with (`rlcore.runtime.callbacks`).
    """

    step: int
    version: int
    producer: Mapping[str, Any]
    model: Mapping[str, Any]
    callbacks: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    __pydantic_config__ = ConfigDict(extra="forbid")

    def write(self, folder: Path) -> None:
        """Write `folder/state.json`."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n")

    @staticmethod
    def read(folder: Path) -> "RunState":
        """Read `folder/state.json`; `CheckpointError` where it is missing, damaged or of another format."""
        path = folder / FILE
        try:
            data = parse_json(path.read_text())
        except FileNotFoundError:
            raise CheckpointError(f"{path}: not found, so {folder} is not a checkpoint of rlcore.") from None
        except ValueError as error:
            raise CheckpointError(f"{path}: not a run state ({error}).") from error
        # Before the validation, whose first complaint would be of some field that the other format has.
        _check_format(path, data)
        try:
            return TypeAdapter(RunState).validate_python(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise CheckpointError(f"{path}: not a run state ({where}: {first['msg']}).") from error


def check_format(folder: Path) -> None:
    """`CheckpointError` if `folder/state.json` is of another format. One that is damaged is left to `read`.

    Settings of another release may be unknown here, so this comes before a resumed run's are read.
    """
    data = None
    with suppress(OSError, ValueError):
        data = parse_json((folder / FILE).read_text())
    _check_format(folder / FILE, data)


def _check_format(path: Path, data: Any) -> None:
    version = data.get("format") if isinstance(data, dict) else None
    if isinstance(version, int) and version != FORMAT:
        raise CheckpointError(
            f"{path}: format {version}, and this rlcore reads format {FORMAT}; resume the run with the "
            "version that wrote it."
        )
