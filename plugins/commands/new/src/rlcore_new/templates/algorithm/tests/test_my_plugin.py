"""The recipe keeps what rlcore promises of recipes: it names installed parts and known settings."""

from rlcore_testing.algorithms import AlgorithmConformance

from rlcore_my_plugin.plugin import rlcore_algorithms


class TestMyPlugin(AlgorithmConformance):
    [algorithm] = rlcore_algorithms()
