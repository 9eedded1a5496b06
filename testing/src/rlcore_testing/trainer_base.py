"""What the parts of the trainers' suite share: the trainer, its bridge, and what it says it can."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import torch
from torch import Tensor

from rlcore.api.ability import Ability
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

    def trainer(self) -> Part[Any]:
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

    @property
    def config(self) -> TrainerConfig:
        """What the trainer says of itself."""
        config = self.trainer().config
        assert isinstance(config, TrainerConfig), f"its config {type(config).__name__} is no TrainerConfig"
        return config

    def needs(self, *abilities: Ability) -> None:
        """Skips what is asked of an ability that the trainer does not declare."""
        if undeclared := sorted(set(abilities) - self.config.abilities):
            pytest.skip(f"its `abilities` have no {', '.join(undeclared)}")

    def refusal(self, ranks: int, fields: Mapping[str, Any], path: Path) -> str:
        """Why the trainer does not divide the model at `path` so; empty: it does."""
        config, run = self.config, RunConfig.of(ranks=ranks)
        hf_config = json.loads((path / "config.json").read_text())
        complaints = [
            *config.complaints(run, fields, ()),
            *config.model_complaints(run, fields, hf_config),
        ]
        return next(iter(complaints), "")
