"""The bridge computes what transformers computes, on one rank and on two."""

from typing import ClassVar

from rlcore import Part
from rlcore_megatron.testing.bridges import HEADS, LAYOUTS, ROPES, TIED, BridgeConformance
from transformers import MistralConfig


class TestMyPlugin(BridgeConformance):
    bridge = Part(
        name="my_plugin",
        factory="rlcore_my_plugin.bridge:MyPlugin",
    )
    config_class = MistralConfig
    shape: ClassVar = {**BridgeConformance.shape, "sliding_window": None}
    axes: ClassVar = {"tied": TIED, "heads": HEADS, "rope": ROPES[:1]}
    layouts: ClassVar = {name: layout for name, layout in LAYOUTS.items() if layout[0] == 2}
    refused: ClassVar = {
        "use_sliding_window is not supported": {"sliding_window": 16},
        "hidden_act 'gelu' is not supported": {"hidden_act": "gelu"},
    }
