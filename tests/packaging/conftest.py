"""What the tests of installing share."""

from pathlib import Path

import pytest
from environments import link_third_party


@pytest.fixture(scope="session")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what this environment has beside the workspace's members."""
    return link_third_party(tmp_path_factory.mktemp("third_party"))
