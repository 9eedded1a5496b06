"""MiniMax-M2 on megatron-core is what transformers computes."""

from typing import ClassVar

from transformers import MiniMaxM2Config

from rlcore.api.part import Part
from rlcore_local.testing import answers
from rlcore_megatron.testing.bridges import EXPERT_LAYOUTS, HEADS, ROPES, BridgeConformance

HALF = {"rope_parameters": {**ROPES[0]["rope_parameters"], "partial_rotary_factor": 0.5}}


class TestMiniMaxM2(BridgeConformance):
    """The norm of queries is over all heads, of which tensor-parallel ranks have some."""

    bridge = Part(name="minimax_m2", factory="rlcore_minimax.bridge:MiniMaxBridge")
    config_class = MiniMaxM2Config
    answers: ClassVar = staticmethod(answers)
    shape: ClassVar = {
        **BridgeConformance.shape,
        "intermediate_size": 24,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "bos_token_id": None,
    }
    axes: ClassVar = {
        "heads": ({**HEADS[0]}, {**HEADS[1]}, {**HEADS[2]}),
        "positions": (HALF, ROPES[0], ROPES[1], ROPES[3]),
        "tied": ({"tie_word_embeddings": False}, {"tie_word_embeddings": True}),
    }
    layouts: ClassVar = EXPERT_LAYOUTS
    layout_models: ClassVar = {
        "half": {**HEADS[0], **HALF, "num_hidden_layers": 4},
        "tied": {**HEADS[1], **ROPES[0], "num_hidden_layers": 4, "tie_word_embeddings": True},
    }
    refused: ClassVar = {"hidden_act 'gelu' is not supported": {"hidden_act": "gelu"}}
