"""What is collected, in which order test files start, and servers that start at once."""

import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rlcore_machine import ForkServer, compute_threads, deferred_collection, settle_heap

if TYPE_CHECKING:
    from program import Program

SGLANG = "sglang"
MARK = f"mark.{SGLANG}"
DAILY_CASES = 2
"""Of a grid, in `make test`."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m sglang`, skip the files without that mark: to read one is faster than to import it."""
    if config.option.markexpr != SGLANG or collection_path.suffix != ".py":
        return None
    texts = (
        file.read_text()
        for file in (collection_path, collection_path.with_name("conftest.py"))
        if file.is_file()
    )
    return None if any(MARK in text for text in texts) else True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Without the garbage collector, which would walk all modules of tests again and again."""
    with deferred_collection():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Of a grid, all but the first cases are of the full tier; so are those of the suite of bridges.

    The files whose tests may take longest come first: one that begins last runs alone at the end.
    """
    _leave_grids_to_the_full_tier(items)
    bridges = sys.modules.get("rlcore_megatron.testing.bridges")
    if bridges and "not full" in config.option.markexpr:
        bridges.BridgeConformance.most = DAILY_CASES
    yield  # `-m` chooses
    if not hasattr(config, "workerinput"):  # one after the other, in the usual order
        return
    limits: defaultdict[Path, float] = defaultdict(float)
    for item in items:
        mark = item.get_closest_marker("timeout")
        if mark and mark.args:
            limits[item.path] = max(limits[item.path], mark.args[0])
    items.sort(key=lambda item: -limits[item.path])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """The workers are forked from a process that has done the imports."""
    from warm import WarmWorkers

    workers = WarmWorkers()
    config.add_cleanup(workers.close)
    workers.lead(specs)


def pytest_collection_finish() -> None:
    """The garbage collector walks all that was imported and collected no more."""
    if torch := sys.modules.get("torch"):
        compute_threads(torch.get_num_threads())
    settle_heap()


def _leave_grids_to_the_full_tier(items: list[pytest.Item]) -> None:
    cases = Counter[str]()
    for item in items:
        if item.get_closest_marker("grid"):
            test = item.nodeid.partition("[")[0]
            cases[test] += 1
            if cases[test] > DAILY_CASES:
                item.add_marker("full")


@pytest.fixture
def program(capsys: pytest.CaptureFixture[str]) -> "Program":
    """`rlcore` in this process: `program(*arguments)` is what it prints."""
    from program import Program

    return Program(capsys)


@pytest.fixture(scope="module")
def forked_servers() -> Iterator[None]:
    """The `local` servers that the module's tests start are forked, as those of a run are."""
    from command import fork_server

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForkServer, "current", fork_server())
        yield
