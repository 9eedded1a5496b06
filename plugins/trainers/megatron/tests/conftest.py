"""The model of most tests here."""

import pytest

from rlcore_testing.tiny import make_qwen3


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random Qwen3 of two layers. Its 99 tokens are padded for two ranks."""
    return str(make_qwen3(tmp_path_factory.mktemp("model")))
