"""The suite of engines names what an engine lacks: `local`, with one fault each."""

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from broken_parts import Fault, break_package, copy_package, fails, faults

import rlcore_local
from rlcore_local.config import LocalConfig
from rlcore_machine import ForkServer
from rlcore_testing.conformance import Subject
from rlcore_testing.engines import EngineConformance


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the packages lie; their servers are forked from a process that has imported torch."""
    folder = tmp_path_factory.mktemp("packages")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        with ForkServer(LocalConfig.preload) as server:
            patch.setattr(ForkServer, "current", server)
            yield folder


@pytest.mark.full
@faults(__file__)
def test_an_engine_with_a_fault(fault: Fault, root: Path) -> None:
    package = root / f"local_with_{fault.name}"
    copy_package(Path(rlcore_local.__file__).parent, package)
    break_package(package, fault)
    part = importlib.import_module(f"{package.name}.testing").LOCAL
    found = fails(EngineConformance.of(Subject(record=None, part=part)), fault.missing)
    assert fault.reason in found[fault.missing]
