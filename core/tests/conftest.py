"""What tests of the core in several folders share."""

import pytest
from runs import run_of

from rlcore.preparation.prepare import prepare
from rlcore.preparation.prepared import Prepared


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Of plain `grpo`, in a folder of its own."""
    return prepare(run_of("grpo"), tmp_path_factory.mktemp("run"), None)
