"""The suite of trainers names what a trainer lacks: that of `rlcore new trainer`, with one fault each.

Without a fault it passes: its own tests say so (tests/packaging/test_release.py).
"""

import importlib
from pathlib import Path

import pytest
from broken_parts import Fault, break_package, fails, faults

from rlcore.api.part import Part
from rlcore_new.package import write_package
from rlcore_testing.conformance import Subject
from rlcore_testing.trainers import TrainerConformance


@pytest.mark.grid
@faults(__file__)
def test_a_trainer_with_a_fault(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, made = fault.name, fault.name.title().replace("_", "")
    write_package("trainer", name, "MIT", tmp_path / name)
    break_package(tmp_path / name / "src" / f"rlcore_{name}", fault)
    monkeypatch.syspath_prepend(tmp_path / name / "src")
    config = getattr(importlib.import_module(f"rlcore_{name}.config"), f"{made}Config")
    part = Part(name=name, factory=f"rlcore_{name}.trainer:{made}", config=config())
    found = fails(TrainerConformance.of(Subject(record=None, part=part)), fault.missing)
    assert fault.reason in found[fault.missing]
