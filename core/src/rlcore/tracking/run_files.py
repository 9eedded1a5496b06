"""`RunFiles`: the tracker of every run. It writes `metrics.jsonl` and the samples into the run's folder."""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

from rlcore.api.errors import CheckpointError
from rlcore.api.tracker import RunInfo, Tracker
from rlcore.api.types import Json, Sample, parse_json
from rlcore.checkpoint.disk import disk_sentence, replace_file

Row = dict[str, Json]
Decode = Callable[[tuple[int, ...]], str]
METRICS_FILE = "metrics.jsonl"
"""The metrics: a flat JSON object a step, with `step`, `weight_version`, and names with a slash."""
SAMPLES_FOLDER = "samples"
"""The samples: `eval-STEP.jsonl` and `rollout-STEP.jsonl`."""
TRAJECTORY = "trajectory"
"""The key of a saved sample that holds its tokens."""
BROKEN = "\ufffd"
"""The character that a decoder writes for a part of a character."""
MOST_BYTES = 4
"""Bytes of one character in UTF-8."""


def read_metrics(path: Path) -> list[dict[str, Json]]:
    """The rows of a run's `METRICS_FILE`, without lines that a crash has cut short or a disk has damaged."""
    return [row for line in path.read_bytes().split(b"\n")[:-1] if (row := _readable(line)) is not None]


def _readable(line: bytes) -> Row | None:
    """The row of a line; None: it is damaged."""
    try:
        row = parse_json(line.decode())
    except ValueError:
        return None
    step = row.get("step") if isinstance(row, dict) else None
    return row if isinstance(row, dict) and isinstance(step, int) else None


def restore_metrics(folder: Path, checkpoint: Path) -> str | None:
    """Where the run's `METRICS_FILE` does not begin with the rows of `checkpoint`, write these instead.

    A note about that; None: they are all there.
    """
    file, copy = folder / METRICS_FILE, checkpoint / METRICS_FILE
    kept = copy.read_bytes() if copy.exists() else b""
    found = file.read_bytes() if file.exists() else b""
    if found.startswith(kept):
        return None
    with replace_file(file) as draft:
        draft.write_bytes(kept)
    lines = enumerate(zip_longest(kept.splitlines(True), found.splitlines(True)), 1)
    line = next(number for number, (one, other) in lines if one != other)
    return f"{file}: line {line} was damaged or lost. The rows were restored from {checkpoint}."


class MetricsFile:
    """Appends rows to `path`, each by one write, so that a reader never sees half a row.

    Rows after `keep_step` are removed, because a resumed run repeats their steps. Errors of the file system
    become a CheckpointError.
    """

    def __init__(self, path: Path, *, keep_step: int) -> None:
        self._path = path
        if path.exists():
            write_lines(path, [row for row in read_metrics(path) if row["step"] <= keep_step])
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise CheckpointError(disk_sentence(path, error)) from error

    def write(self, row: Mapping[str, Json]) -> None:
        """Append one step. A number that is not finite becomes null: JSON has none."""
        data = _line(row).encode()
        try:
            while data:  # a full disk may take a part, and refuse the rest with the reason
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            raise CheckpointError(disk_sentence(self._path, error)) from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def write_lines(path: Path, rows: list[Row]) -> None:
    """Write a JSON-lines file, whole or not at all. Errors of the file system become a CheckpointError."""
    with replace_file(path) as draft:
        draft.write_text("".join(map(_line, rows)), encoding="utf-8")


def _line(row: Mapping[str, Json]) -> str:
    plain = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
    return json.dumps(plain, ensure_ascii=False, allow_nan=False) + "\n"


class RunFiles(Tracker):
    """Writes `metrics.jsonl`, `samples/eval-STEP.jsonl` and, every `save_rollouts_every` steps,
    `samples/rollout-STEP.jsonl`.
    """

    essential: ClassVar[bool] = True

    def start(self, run: RunInfo) -> None:
        """Removes rows after `run.step`, which a resumed run repeats. A new run removes all."""
        self._samples = run.folder / SAMPLES_FOLDER
        self._every = int(run.settings.get("save_rollouts_every", 0))
        self._decode = run.decode
        self._metrics = MetricsFile(run.folder / METRICS_FILE, keep_step=run.step or -1)

    def metrics(self, step: int, metrics: Mapping[str, Json]) -> None:
        """Appends one line."""
        self._metrics.write(metrics)

    def evaluation(self, step: int, samples: Mapping[str, Sequence[Sample]]) -> None:
        """Writes `samples/eval-STEP.jsonl`."""
        write_samples(self._samples / f"eval-{step}.jsonl", samples)

    def rollout(self, step: int, samples: Sequence[Sample]) -> None:
        """Writes `samples/rollout-STEP.jsonl`, with the tokens and what is known of each."""
        if self._every and step % self._every == 0:
            decode = self._decode and cache(self._decode)
            rows = [_row("rollout", sample) | {TRAJECTORY: _trajectory(sample, decode)} for sample in samples]
            write_lines(self._samples / f"rollout-{step}.jsonl", rows)

    def end(self, reason: str) -> None:
        """Closes `metrics.jsonl`."""
        self._metrics.close()


def write_samples(file: Path, samples: Mapping[str, Sequence[Sample]]) -> None:
    """Write a line for each sample, with the name of its set."""
    write_lines(file, [_row(name, sample) for name, of_set in samples.items() for sample in of_set])


def _row(name: str, sample: Sample) -> Row:
    score = sample.score
    return {
        "set": name,
        "prompt_id": sample.prompt.prompt_id,
        "prompt": sample.prompt.text,
        "label": sample.prompt.label,
        "response": sample.text,
        "tokens": len(sample.response_ids),
        "status": sample.status.value,
        "reward_status": sample.reward_status.value,
        "score": None if score is None else score.value,
        "parts": {} if score is None else dict(score.parts),
        "versions": sorted(sample.versions),
        **({"policy": sample.policy} if sample.policy else {}),
    }


def _trajectory(sample: Sample, decode: Decode | None) -> Row:
    """The tokens and what is known of each, for the generator `replay` and for `rlcore view`."""
    score = sample.score
    return {
        "group_id": sample.group_id,
        "index": sample.index,
        "prompt_ids": sample.prompt_ids,
        "response_ids": list(sample.response_ids),
        "loss_mask": list(sample.loss_mask),
        "log_probs": list(sample.log_probs),
        "metadata": dict(sample.metadata),
        "spans": [[span.start, span.version] for span in sample.spans],
        "extras": {name: _numbers(value) for name, value in sample.extras.items()},
        **({"rewards": _numbers(score.per_token)} if score is not None and score.per_token else {}),
        **({} if decode is None else token_texts(sample, decode)),
    }


def _numbers(value: Any) -> Json:
    """An extra as JSON, with 6 digits: people look at it, and no run goes on from it."""
    if isinstance(value, Mapping | str):
        return value
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Iterable):
        return [_numbers(item) for item in value]
    return float(f"{value:.6g}") if math.isfinite(value) else None


def token_texts(sample: Sample, decode: Decode) -> Row:
    """`prompt_text`, as the model saw it, and `token_texts`, one for each response token."""
    ids = tuple(sample.response_ids)
    texts = [decode((token,)) for token in ids]
    for start, text in enumerate(texts):
        if BROKEN in text:  # a part of a character: it stands with the first of its tokens
            for end in range(start + 2, min(start + MOST_BYTES, len(ids)) + 1):
                whole = decode(ids[start:end])
                if BROKEN not in whole:
                    texts[start:end] = [whole, *[""] * (end - start - 1)]
                    break
    return {"prompt_text": decode(tuple(sample.prompt_ids)), "token_texts": texts}
