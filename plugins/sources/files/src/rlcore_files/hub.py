"""Data sets of the Hugging Face hub: `OWNER/NAME[/CONFIG][:SPLIT]`, as the parquet that it makes of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rlcore import DataError, first_line, is_url

_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)(?:/([\w.-]+))?(?::([A-Za-z][\w.-]*))?")
_SCHEME = "hf://"
_ROOT = f"{_SCHEME}datasets/{{}}@refs/convert/parquet"
_USUAL = "train"

SUFFIXES = (".jsonl", ".parquet")
"""Of files that are read."""


@dataclass(frozen=True, kw_only=True)
class HubDataset:
    """One split of a data set. `config`: empty for `default`, or the only one."""

    name: str
    config: str
    split: str

    @classmethod
    def of(cls, path: str) -> HubDataset | None:
        """What `path` names, unless it is a URL, a file by its suffix, or in a folder that is here."""
        named = _NAME.fullmatch(path)
        if named is None or is_url(path) or path.endswith(SUFFIXES):
            return None
        if Path(path).exists() or Path(named[1]).parent.exists():
            return None
        return cls(name=named[1], config=named[2] or "", split=named[3] or _USUAL)

    @property
    def url(self) -> str:
        """Where its files are, as a pattern."""
        return f"{_ROOT.format(self.name)}/{self.config or 'default'}/{self.split}/*.parquet"

    def complaint(self) -> str | None:
        """Why the hub is not asked, after the name; None where it is."""
        from huggingface_hub import constants

        if not constants.HF_HUB_OFFLINE:
            return None
        return f"which is no file here; it would be fetched from {self.url}, but HF_HUB_OFFLINE is set."

    def files(self) -> tuple[str, ...]:
        """The URLs of its files. Raises `DataError` where the hub has none, or does not answer."""
        import fsspec

        root = _ROOT.format(self.name)
        try:
            system, folder = fsspec.core.url_to_fs(root)
            return tuple(f"{_SCHEME}{path}" for path in self.files_in(system, folder))
        except DataError:
            raise
        except Exception as error:  # the hub's client has errors of its own, and the network's
            raise DataError(
                f"{self.name}: no file here, and {root} cannot be read: {first_line(error)}."
            ) from error

    def files_in(self, system: Any, folder: str) -> list[str]:
        """The files of a system with a folder for each configuration, and in it one for each split."""
        configs = _inner(system, folder)
        usual = configs[0] if len(configs) == 1 else "default"
        config = self.config or usual
        if config not in configs:
            raise DataError(
                f"{self.name}: found no configuration {config!r}, expected {self.name}/CONFIG with one of "
                f"{', '.join(configs)}."
            )
        splits = _inner(system, f"{folder}/{config}")
        if self.split not in splits:
            raise DataError(
                f"{self.name}/{config}: found no split {self.split!r}, expected {self.name}/{config}:SPLIT "
                f"with one of {', '.join(splits)}."
            )
        return sorted(system.glob(f"{folder}/{config}/{self.split}/*.parquet"))


def _inner(system: Any, folder: str) -> list[str]:
    found = [one["name"] for one in system.ls(folder, detail=True) if one["type"] == "directory"]
    return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)


@cache
def files_at(path: str) -> tuple[str, ...]:
    """The files that a path of `--data` stands for: itself, or those of a data set of the hub."""
    dataset = HubDataset.of(path)
    return (path,) if dataset is None else dataset.files()
