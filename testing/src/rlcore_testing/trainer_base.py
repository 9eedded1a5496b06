"""What the parts of the trainers' suite share: the trainer, its bridge, and what it says it lacks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import torch
from torch import Tensor

from rlcore.api.part import Part
from rlcore.api.part_config import TrainerConfig
from rlcore.api.run_config import RunConfig
from rlcore_testing.conformance import Conformance, Subject
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import make_qwen3

LOG_PROBS = 1e-4
"""Largest difference of log-probs in fp32: what every run checks of trainer and engine."""
SUMS = 1e-4
"""Relative difference of sums over another order."""


def equal(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Fails at the first tensor that differs in any bit."""
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), f"{name} differs"


class OfTrainer(Conformance):
    """Says which trainer; each property is asked of processes of their own."""

    qwen3: ClassVar[Part] = Part(name="none", factory="rlcore.api.part:Part")
    """The bridge of Qwen3 for this trainer; the default fits one that needs no bridge."""

    @classmethod
    def of(cls, subject: Subject) -> type[Self]:
        """With the bridge that a plugin offers for it."""
        return cls.with_values(part=subject.part, qwen3=subject.bridge or cls.qwen3)

    def trainer(self) -> Part:
        """The trainer, as a record names it."""
        return self.part

    def bridge(self) -> Part:
        """The bridge of Qwen3 for this trainer."""
        return self.qwen3

    def asked(self, function: Callable[..., Any], path: Path, *more: Any) -> Any:
        """What the one rank answers."""
        return self.asked_of(1, function, path, *more)[0]

    def asked_of(self, ranks: int, function: Callable[..., Any], path: Path, *more: Any) -> list[Any]:
        """What each rank answers."""
        name = f"{function.__module__}:{function.__name__}"
        return run_ranks(name, ranks, self.trainer(), self.bridge(), str(path), *more)

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        """A tiny random Qwen3."""
        return make_qwen3(tmp_path / "model")

    @pytest.fixture
    def other(self, tmp_path: Path) -> Path:
        """Another one: three layers, and weights of its own."""
        return make_qwen3(tmp_path / "other", num_hidden_layers=3)

    def refusal(
        self, *roles: str, ranks: int = 1, fields: Mapping[str, Any] | None = None, path: Path | None = None
    ) -> str:
        """Why the trainer takes no run of these; empty: it takes it. `path`: of the model that is divided."""
        config = self.trainer().config
        if not isinstance(config, TrainerConfig):
            return ""
        run, given = RunConfig.of(ranks=ranks), fields or {}
        said = [*config.complaints(run, given, roles)]
        if path is not None:
            said += config.model_complaints(run, given, json.loads((path / "config.json").read_text()))
        always = set(config.complaints(RunConfig(), {}, ()))  # about settings that a user would give
        return next((sentence for sentence in said if sentence not in always), "")

    def takes(self, role: str) -> None:
        """Skips what is asked of a role that the trainer does not have."""
        refusal = self.refusal(role)
        if refusal:
            pytest.skip(f"no {role}: {refusal}")
