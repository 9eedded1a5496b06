"""Runs around a producer of this plugin."""

from collections.abc import Callable

import pytest
from rollout_world import World


@pytest.fixture
def make_world() -> Callable[..., World]:
    return World
