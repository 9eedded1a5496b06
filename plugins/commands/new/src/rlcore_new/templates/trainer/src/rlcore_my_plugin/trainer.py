"""The trainer `my_plugin`: what the driver asks, and its one rank."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rlcore import (
    DTYPE_NAMES,
    CheckpointError,
    ConversionReport,
    DataRank,
    PluginFile,
    ProgressCallback,
    Rendezvous,
    RoleSpec,
    RunConfig,
    SavedWeights,
    write_atomically,
)
from rlcore_toolkit import TensorEntry, plan_shards, write_shards
from safetensors.torch import load_file

from rlcore_my_plugin.config import MyPluginConfig
from rlcore_my_plugin.model import MODEL, Model


class Rank:
    """The one rank."""

    data = DataRank(device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))

    def __init__(self, config: MyPluginConfig) -> None:
        self._foreach = config.foreach

    def build(self, roles: Mapping[str, RoleSpec]) -> Mapping[str, Model]:
        """The models of the run. A worker may have one of those that never train alone."""
        return {
            name: Model(role.model, role.optimizer, role.hooks, foreach=self._foreach)
            for name, role in roles.items()
        }

    def stop(self) -> None:
        """There is no group to leave."""


class MyPlugin:
    """In the driver: settings, and conversion of checkpoints."""

    def __init__(self, config: MyPluginConfig) -> None:
        self.config = config

    def check_fields(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Its library has no settings of its own."""
        return {}

    def fields(self, run: RunConfig, given: Mapping[str, Any], *, gpu: bool) -> Mapping[str, Any]:
        """Takes no fields, as `check_fields` says."""
        return {}

    def join(self, meeting: Rendezvous, fields: Mapping[str, Any]) -> Rank:
        """In the train worker: it meets nobody."""
        if meeting.listener is not None:
            meeting.listener.close()
        random.seed(meeting.seed)
        torch.manual_seed(meeting.seed)
        return Rank(self.config)

    def to_hf(
        self,
        source: SavedWeights,
        out: Path,
        advance: ProgressCallback,
        ranks: int = 1,
        plugin_files: Sequence[PluginFile] = (),
    ) -> ConversionReport:
        """A checkpoint as a Hugging Face directory."""
        if out.exists():
            raise CheckpointError(f"{out}: exists already; name a directory that does not.")
        tensors = load_file(source.folder / MODEL)
        files = plan_shards(
            (TensorEntry(name, tuple(t.shape), t.dtype) for name, t in tensors.items()), 2**32
        )
        total = sum(file.nbytes for file in files)
        with write_atomically(out, marked=False) as folder:
            report = write_shards(folder, files, iter(tensors.items()), lambda more: advance(more, total))
            for file in Path(source.spec.path).iterdir():
                if file.is_file() and file.suffix in (".json", ".jinja", ".txt", ".model"):
                    shutil.copyfile(file, folder / file.name)
            config = json.loads((folder / "config.json").read_text())
            config["dtype"] = DTYPE_NAMES[source.spec.dtype]
            (folder / "config.json").write_text(json.dumps(config))
            report.write(folder)
        return report
