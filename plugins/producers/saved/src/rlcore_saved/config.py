"""The config of the producer, which finds the files."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from rlcore import DataError, ProducerConfig, absolute_path

FOLDER, SUFFIX = "rollouts", ".safetensors"
"""The folder in a run's folder where a run saves its rollouts, each as `STEP.safetensors`."""


class SavedConfig(ProducerConfig):
    """Config of the producer `saved`."""

    path: str = Field(
        min_length=1, description="the folder of a run with --save-rollouts-every, or its rollouts/"
    )

    makes_batches: ClassVar[bool] = True

    _absolute = field_validator("path")(absolute_path)

    def files(self) -> list[Path]:
        """The files in the order of their steps. Raises `DataError`."""
        asked, path = f"--producer.path {self.path}", Path(self.path)
        folder = path / FOLDER if (path / FOLDER).is_dir() else path
        if not folder.is_dir():
            raise DataError(f"{asked}: no such folder.")
        files = {int(file.stem): file for file in folder.glob(f"*{SUFFIX}") if file.stem.isdecimal()}
        if not files:
            raise DataError(
                f"{asked}: holds no saved rollouts; a run writes them to RUN/{FOLDER} with "
                "--save-rollouts-every."
            )
        return [files[step] for step in sorted(files)]

    def last_step(self) -> int:
        """One step for each file. Raises `DataError` where one cannot be read."""
        from rlcore_saved.batch_file import read_about

        files = self.files()
        for file in files:
            read_about(file)
        return len(files)
