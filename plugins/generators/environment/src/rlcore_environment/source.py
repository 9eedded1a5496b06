"""Prompts for environments: seeds, tasks of Harbor, rows of verifiers."""

import importlib.util
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlcore import DataError, Json, Messages, MissingPackageError, Prompt, Prompts
from rlcore_environment.config import EpisodesConfig, HarborTasksConfig, VerifiersRowsConfig
from rlcore_environment.harbor_task import CONFIG, INSTRUCTION, read_task

_log = logging.getLogger(__name__)

VERIFIERS = "verifiers>=0.1.14,<0.4"
TASK, IMAGE, IGNORE_RUN = "harbor_task", "harbor_image", "harbor_ignore_run"
"""In a prompt's metadata: the task's folder; that of its unpacked image; whether `RUN` is passed over."""


class Episodes:
    """The same text with `metadata["seed"]`, one seed a prompt; the last ones are held out."""

    def __init__(self, config: EpisodesConfig) -> None:
        self._config = config

    def prompts(self) -> Prompts:
        """Raises `DataError` where all seeds are held out."""
        config = self._config
        if config.held_out >= config.size:
            raise DataError(f"--source.held-out: found {config.held_out}, expected fewer than --source.size.")
        text: str | Messages = ({"role": "user", "content": config.text},) if config.chat else config.text
        prompts = [
            Prompt(prompt_id=f"episode:{seed}", text=text, metadata={"seed": seed})
            for seed in range(config.first_seed, config.first_seed + config.size)
        ]
        count = config.size - config.held_out
        return Prompts(train=prompts[:count], held_out={"episodes": prompts[count:]})


class HarborTasks:
    """A prompt for each folder with a `task.toml`, by name."""

    def __init__(self, config: HarborTasksConfig) -> None:
        self._config = config

    def prompts(self) -> Prompts:
        """Raises `DataError` where there is no task, or one that a sandbox cannot run."""
        root, held_out = Path(self._config.path), self._config.held_out
        folders = sorted({file.parent for file in root.rglob(CONFIG)})
        prompts, unfit = [], []
        for folder in folders:
            try:
                prompts.append(self._prompt(root, folder))
            except DataError as error:
                if not self._config.skip_unfit:
                    raise
                unfit.append(error)
        if unfit:
            _log.warning("%d of %d tasks are left out. The first: %s", len(unfit), len(folders), unfit[0])
        if len(prompts) <= held_out:
            raise DataError(
                f"--source.path {root}: found {len(prompts)} folders with a {CONFIG} that fits, expected "
                f"more than the {held_out} that are held out."
            )
        count = len(prompts) - held_out
        return Prompts(train=prompts[:count], held_out={"harbor": prompts[count:]} if held_out else {})

    def _prompt(self, root: Path, folder: Path) -> Prompt:
        name = folder.name if folder == root else str(folder.relative_to(root))
        image = Path(self._config.images) / name if self._config.images else None
        if image is not None and not image.is_dir():
            raise DataError(
                f"--source.images: found no folder {image}, expected the unpacked image of {name}."
            )
        read_task(folder, image, ignore_run=self._config.ignore_run)
        try:
            instruction = (folder / INSTRUCTION).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise DataError(f"{folder}: its {INSTRUCTION} cannot be read: {error}.") from error
        text = f"{self._config.how}\n\n{instruction}".strip()
        metadata: dict[str, Json] = {TASK: str(folder), IMAGE: str(image) if image else None}
        metadata[IGNORE_RUN] = self._config.ignore_run
        return Prompt(prompt_id=name, text=({"role": "user", "content": text},), metadata=metadata)


class VerifiersRows:
    """The data set of an environment of verifiers, and its held-out one where it has that."""

    def __init__(self, config: VerifiersRowsConfig) -> None:
        """Raises `MissingPackageError`; `ConfigError` where the environment cannot be loaded."""
        if importlib.util.find_spec("verifiers") is None:
            raise MissingPackageError(
                f'--task verifiers: its package is not installed; pip install "{VERIFIERS}".'
            )
        from rlcore_environment.adapters import verifiers

        self._env = verifiers.load(config.environment, config.options)

    def prompts(self) -> Prompts:
        """Each row with its messages, its answer as the label, and what its rubric reads as metadata."""
        train = list(_of_rows(self._env.get_dataset(), "train"))
        self._env.build_eval_dataset()
        if self._env.eval_dataset is None:
            return Prompts(train=train)
        return Prompts(train=train, held_out={"eval": list(_of_rows(self._env.get_eval_dataset(), "eval"))})


def _of_rows(rows: Iterable[Mapping[str, Any]], name: str) -> Iterable[Prompt]:
    for number, row in enumerate(rows):
        metadata = {key: row[key] for key in ("info", "task", "example_id") if row.get(key) is not None}
        text = row["prompt"]
        yield Prompt(
            prompt_id=f"{name}:{number}",
            text=text if isinstance(text, str) else tuple(map(_message, text)),
            label=row.get("answer"),
            metadata=metadata,
        )


def _message(message: Mapping[str, Any]) -> Mapping[str, Json]:
    """Without the keys that a table fills with None."""
    return {key: value for key, value in message.items() if value is not None}
