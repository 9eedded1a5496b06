"""Saved samples, as `--save-rollouts-every` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, FiniteFloat, TypeAdapter, ValidationError, model_validator

from rlcore import DataError, GenerationStatus, Json, parse_json


class Saved(BaseModel):
    """The tokens of one sample; see `rlcore.Sample`."""

    model_config = ConfigDict(frozen=True)

    group_id: int
    index: int
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    log_probs: tuple[FiniteFloat, ...]
    metadata: dict[str, Json]
    text: str
    status: GenerationStatus
    policy: str = ""

    @model_validator(mode="after")
    def _aligned(self) -> Saved:
        if not len(self.response_ids) == len(self.loss_mask) == len(self.log_probs):
            raise ValueError("response_ids, loss_mask and log_probs differ in their lengths")
        return self


_SAVED = TypeAdapter(Saved)


class Archive:
    """The saved samples of a file or a folder, by prompt, group and index.

    A split trajectory is several samples of one index, in order.
    """

    def __init__(self, path: Path) -> None:
        """Raises `DataError` where there are none, or a line is no sample with its tokens."""
        self._prompts: dict[str, dict[int, dict[int, list[Saved]]]] = {}
        self._last: dict[tuple[str, int], Path] = {}
        for file in _files(path):
            for prompt_id, saved in _rows(file):
                self._add(prompt_id, saved, file)
        if not self._prompts:
            raise DataError(f"{path}: holds no saved samples.")

    def find(self, prompt_id: str, group_id: int, index: int) -> list[Saved]:
        """The trajectory of a sample, which may be split; empty where none was saved.

        The group of the same number, where it is one of the same prompt; else the prompt's groups in turn.
        """
        groups = self._prompts.get(prompt_id, {})
        if not groups:
            return []
        group = groups.get(group_id) or [*groups.values()][group_id % len(groups)]
        return group.get(index, [])

    def _add(self, prompt_id: str, saved: Saved, file: Path) -> None:
        key = prompt_id, saved.group_id
        if self._last.setdefault(key, file) != file:
            raise DataError(
                f"{file}: group {saved.group_id} of the prompt {prompt_id!r} is in {self._last[key]} too; "
                "expected the samples of one run."
            )
        group = self._prompts.setdefault(prompt_id, {}).setdefault(saved.group_id, {})
        group.setdefault(saved.index, []).append(saved)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"--generator.path {path}: no such file or folder.")
    files = {
        int(file.stem.removeprefix("rollout-")): file
        for file in path.glob("rollout-*.jsonl")
        if file.stem.removeprefix("rollout-").isdigit()
    }
    if not files:
        raise DataError(
            f"--generator.path {path}: no rollout-N.jsonl in it; a run writes them to RUN/samples with "
            "--save-rollouts-every."
        )
    return [files[step] for step in sorted(files)]


def _rows(file: Path) -> Iterator[tuple[str, Saved]]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read: {error}.") from error
    for number, line in enumerate(lines, 1):
        try:
            row: dict[str, Any] = parse_json(line)
            fields = {**row["trajectory"], "text": row["response"], "status": row["status"]}
            yield str(row["prompt_id"]), _SAVED.validate_python(fields)
        except (ValueError, KeyError, TypeError) as error:
            said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else repr(error)
            raise DataError(f"{file}, line {number}: no saved sample with its tokens ({said}).") from error
