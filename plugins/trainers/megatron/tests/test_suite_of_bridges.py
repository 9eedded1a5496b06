"""The suite of bridges names what a bridge lacks: that of `rlcore new model`, with one fault each.

Without a fault it passes: its own tests say so (tests/packaging/test_release.py).
"""

import importlib
from pathlib import Path

import pytest
from broken_parts import Fault, break_package, fails, faults

from rlcore.api.part import Part
from rlcore_megatron.testing.bridges import BridgeConformance
from rlcore_new.package import write_package
from rlcore_testing.conformance import Subject


@pytest.mark.grid
@faults(__file__)
def test_a_bridge_with_a_fault(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = fault.name
    write_package("model", name, "MIT", tmp_path / name)
    break_package(tmp_path / name / "src" / f"rlcore_{name}", fault)
    monkeypatch.syspath_prepend(tmp_path / name / "src")
    [family] = importlib.import_module(f"rlcore_{name}.plugin").rlcore_models()
    suite = BridgeConformance.of(Subject(record=family, part=Part(name=name, factory=family.factory)))
    refused = {"hidden_act 'gelu' is not supported": {"hidden_act": "gelu"}}
    found = fails(suite.with_values(refused=refused), fault.missing)
    assert fault.reason in found[fault.missing]
