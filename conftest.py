"""The order in which test files start where several run at once."""

from collections import defaultdict
from pathlib import Path

import pytest


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
