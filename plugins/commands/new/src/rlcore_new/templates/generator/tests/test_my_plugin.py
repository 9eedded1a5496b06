"""The generator keeps what rlcore promises of generators."""

from rlcore import Generator
from rlcore_testing.generators import GeneratorConformance

from rlcore_my_plugin.config import MyPluginConfig
from rlcore_my_plugin.generator import MyPlugin


class TestMyPlugin(GeneratorConformance):
    def generator(self) -> Generator:
        return MyPlugin(MyPluginConfig(attempts=3))

    def answer(self, prompt: str, seed: int) -> str:
        """What the policy says in the tests."""
        return f"answer {seed % 7}"
