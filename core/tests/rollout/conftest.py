"""Runs around a producer in this process."""

from collections.abc import Callable

import pytest
from rollout_world import World


@pytest.fixture
def make_world() -> Callable[..., World]:
    return World
