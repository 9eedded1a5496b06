"""The engine `my_plugin`.

It derives from an installed engine, and changes how the server is started. An engine with a server of its own
derives from `rlcore.Engine`, and needs a class derived from `rlcore.EngineClient` where the server speaks
another protocol: tests/third_engine in the repository of rlcore is an example.
"""

from dataclasses import replace

from rlcore import EngineLaunch, ServerCommand
from rlcore_local.engine import LocalEngine

from rlcore_my_plugin.config import MyPluginConfig


class MyPlugin(LocalEngine):
    """`local` by way of `nice`, for a machine that others use too."""

    name = "my_plugin"
    config: MyPluginConfig

    def command(self, launch: EngineLaunch) -> ServerCommand:
        """The server's command."""
        command = super().command(launch)
        return replace(command, argv=("nice", "-n", str(self.config.niceness), *command.argv))
