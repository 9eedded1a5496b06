"""GLM-4 on megatron-core is what transformers computes."""

from typing import ClassVar

from transformers import Glm4Config

from rlcore.api.part import Part
from rlcore_local.testing import answers
from rlcore_megatron.testing.bridges import HEADS, ROPES, TIED, BridgeConformance


class TestGlm4(BridgeConformance):
    """The dense models."""

    bridge = Part(name="glm4", factory="rlcore_glm.dense:GlmBridge")
    config_class = Glm4Config
    answers: ClassVar = staticmethod(answers)
    axes: ClassVar = {
        "tied": TIED,
        "heads": HEADS,
        "rope": tuple(
            {"rope_parameters": {**choice["rope_parameters"], "partial_rotary_factor": factor}}
            for choice, factor in zip(ROPES, (0.5, 1.0, 0.5, 0.5, 0.25), strict=True)
        ),
        "attention": ({"attention_bias": True}, {"attention_bias": False}),
    }
    refused: ClassVar = {
        "rope_type 'dynamic' is not supported": {
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 1e4,
                "factor": 2.0,
                "partial_rotary_factor": 0.5,
            }
        },
    }
