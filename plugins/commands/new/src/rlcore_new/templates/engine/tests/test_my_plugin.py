"""The engine keeps what rlcore promises of engines: a real server of a tiny model is asked."""

from pathlib import Path

from rlcore import Part
from rlcore_testing.engine_server import launch_of
from rlcore_testing.engines import EngineConformance

from rlcore_my_plugin.config import MyPluginConfig
from rlcore_my_plugin.engine import MyPlugin


class TestMyPlugin(EngineConformance):
    ways = ("shared_memory", "disk")

    def engine(self) -> Part:
        config = MyPluginConfig(start_limit_s=280.0, stop_grace_s=1.0)
        factory = "rlcore_my_plugin.engine:MyPlugin"
        return Part(name="my_plugin", factory=factory, config=config)


def test_the_server_gives_way_to_other_processes(tmp_path: Path) -> None:
    engine = MyPlugin(MyPluginConfig(niceness=5))
    command = engine.command(launch_of(tmp_path, tmp_path))
    assert command.argv[:3] == ("nice", "-n", "5")
