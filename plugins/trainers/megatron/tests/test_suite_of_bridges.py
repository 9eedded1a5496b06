"""The suite of bridges names what a bridge lacks: that of `rlcore new model`, with one fault each.

Without a fault it passes: its own tests say so (tests/packaging/test_release.py).
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from broken_parts import Fault, break_package, fails

from rlcore.api.part import Part
from rlcore_megatron.testing.bridges import BridgeConformance
from rlcore_new.package import write_package
from rlcore_testing.conformance import Subject

END = "        return bridge\n"
FAULTS = [
    Fault(
        name="turns_neighbors",
        file="bridge.py",
        old=END,
        new=f"{END}\n    interleaved = True\n",
        missing="logits are those of transformers",
    ),
    Fault(
        name="gate_for_up",
        file="bridge.py",
        old=END,
        new="""
        class Swapped(bridge):
            _MLP_MAPPING = {name: of[::-1] for name, of in bridge._MLP_MAPPING.items()}

        return Swapped
""",
        missing="logits are those of transformers",
    ),
    Fault(
        name="half_a_slope",
        file="bridge.py",
        old=END,
        new=f"""{END}
    def build(self):
        chunks = super().build()
        for chunk in chunks:
            for name, parameter in chunk.named_parameters():
                if "norm" in name:
                    parameter.register_hook(lambda slope: slope / 2)
        return chunks
""",
        missing="gradients are those of transformers",
        reason="norm.weight",
    ),
    Fault(
        name="rounded",
        file="bridge.py",
        old=END,
        new=f"""{END}
    def export(self, chunks, read):
        for name, tensor in super().export(chunks, read):
            yield name, tensor.bfloat16().to(tensor.dtype)
""",
        missing="published names and values are those on disk",
    ),
    Fault(
        name="not_for_two",
        file="bridge.py",
        old=END,
        new=f"""{END}
    def load(self, chunks, write):
        from rlcore_megatron.mcore import parallel

        super().load(chunks, lambda tensor, values: write(tensor, values / parallel.tensor_size()))
""",
        missing="layouts agree with one rank",
        reason="TP2",
    ),
    Fault(
        name="takes_any",
        file="bridge.py",
        old=END,
        new=f"{END}\n    def check(self, hf_config):\n        pass\n",
        missing="what would be computed wrongly is refused",
        reason="hidden_act",
    ),
]


@pytest.mark.grid
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
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
