"""gpt-oss on megatron-core is what transformers computes."""

from functools import partial
from typing import ClassVar

import torch
from transformers import GptOssConfig

from rlcore import Part
from rlcore_local.testing import answers
from rlcore_megatron.mcore.layers.experts import clamped_glu
from rlcore_megatron.testing.bridges import EXPERT_LAYOUTS, HEADS, ROPES, TIED, BridgeConformance, Choice

YARN: Choice = {"rope_parameters": {**ROPES[3]["rope_parameters"], "truncate": False}}


class TestGptOss(BridgeConformance):
    bridge = Part(name="gpt_oss", factory="rlcore_gpt_oss.bridge:GptOssBridge")
    config_class = GptOssConfig
    answers: ClassVar = staticmethod(answers)
    shape: ClassVar = {
        **BridgeConformance.shape,
        "intermediate_size": 24,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "sliding_window": 4,
        "swiglu_limit": 0.7,  # so that values are clamped
        **YARN,
    }
    axes: ClassVar = {
        "heads": HEADS,
        "rope": ({}, ROPES[0]),
        "experts": ({}, {"intermediate_size": 48}),  # a square matrix out of them
        "layers": ({}, {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 1}),
        "tied": TIED,
    }
    layouts: ClassVar = EXPERT_LAYOUTS
    layout_models: ClassVar = {
        "yarn": {**HEADS[0], "num_hidden_layers": 4},
        "tied": {**HEADS[1], "num_hidden_layers": 4, "tie_word_embeddings": True, "sliding_window": 7},
    }
    refused: ClassVar = {
        "layer_types has 'chunked_attention'": {"layer_types": ["chunked_attention", "full_attention"]},
        "no sliding_window": {"sliding_window": None},
        "attention_bias false": {"attention_bias": False},
        "hidden_act 'gelu'": {"hidden_act": "gelu"},
        "rope_type 'dynamic'": {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
        },
        "quantized by 'gptq'": {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    }


def test_what_is_clamped_has_no_gradient() -> None:
    gate, up = (torch.randn(50, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(partial(clamped_glu, alpha=1.702, limit=0.93), (gate, up))
