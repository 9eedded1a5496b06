"""What is collected, in which order test files start, and servers that start at once."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlcore_machine import ForkServer

SGLANG = "sglang"
MARK = f"mark.{SGLANG}"


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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """First the files whose tests may take longest: one that begins last runs alone at the end."""
    if not hasattr(config, "workerinput"):  # one after the other, in the usual order
        return
    limits: defaultdict[Path, float] = defaultdict(float)
    for item in items:
        mark = item.get_closest_marker("timeout")
        if mark and mark.args:
            limits[item.path] = max(limits[item.path], mark.args[0])
    items.sort(key=lambda item: -limits[item.path])


@pytest.fixture(scope="module")
def forked_servers() -> Iterator[None]:
    """The `local` servers that the module's tests start are forked, as those of a run are."""
    from command import fork_server

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForkServer, "current", fork_server())
        yield
