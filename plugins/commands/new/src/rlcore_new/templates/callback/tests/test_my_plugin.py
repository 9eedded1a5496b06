"""The callback keeps what rlcore promises of callbacks, and ends the run when it says."""

import pytest
from rlcore import Part
from rlcore_testing.callbacks import CallbackConformance

from rlcore_my_plugin.callback import MyPlugin
from rlcore_my_plugin.config import MyPluginConfig


class TestMyPlugin(CallbackConformance):
    part = Part(
        name="my_plugin",
        factory="rlcore_my_plugin.callback:MyPlugin",
        config=MyPluginConfig(),
    )


def test_it_ends_the_run_after_its_time() -> None:
    callback = MyPlugin(MyPluginConfig(minutes=10))
    assert callback.after_step(1, {}) is None
    callback.load(600.0)
    control = callback.after_step(2, {})
    assert control is not None
    assert control.stop == "10.0 minutes, at least 10"


def test_a_resumed_run_goes_on_to_count() -> None:
    first, second = (MyPlugin(MyPluginConfig()) for _ in range(2))
    first.load(120.0)
    second.load(first.state())
    assert second.state() == pytest.approx(120.0, abs=5.0)
