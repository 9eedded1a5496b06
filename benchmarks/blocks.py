"""CPU seconds, forward and backward, of one layer with each block of 2026, next to transformers' layer.

Both have the same weights and read the same 8 sequences of 256 tokens. The MLP is narrow: the block counts.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any

import torch
from common import Row, machine, pairs, parser, publish, table, verdict
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DeepseekV32Config,
    GptOssConfig,
    PretrainedConfig,
    Qwen3_5TextConfig,
)

from rlcore.api.batch import TrainBatch
from rlcore.api.optimizer import OptimizerSettings
from rlcore.api.part import ModelSpec, Part
from rlcore_machine import keep_memory
from rlcore_machine.network import free_port
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_testing.checkpoints import make_checkpoint

SAMPLES, TOKENS, MOST = 8, 256, 1.3
SHAPE: dict[str, Any] = {
    **{"vocab_size": 512, "hidden_size": 512, "intermediate_size": 32, "num_hidden_layers": 2},
    **{"num_attention_heads": 8, "max_position_embeddings": 512, "pad_token_id": None},
}
DELTA: dict[str, Any] = {
    **{"linear_num_key_heads": 4, "linear_num_value_heads": 8, "num_key_value_heads": 2, "head_dim": 64},
    **{"linear_key_head_dim": 64, "linear_value_head_dim": 64},
}
LATENT: dict[str, Any] = {
    **{"q_lora_rank": 128, "kv_lora_rank": 64, "num_key_value_heads": 8, "first_k_dense_replace": 2},
    **{"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "n_routed_experts": 8},
    **{"index_topk": 64, "index_n_heads": 16, "index_head_dim": 64, "n_group": 1, "topk_group": 1},
}
EXPERTS: dict[str, Any] = {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 64}
WINDOW: dict[str, Any] = {"layer_types": ["sliding_attention"] * 2, "num_key_value_heads": 2, "head_dim": 64}
BLOCKS: dict[str, tuple[str, PretrainedConfig]] = {
    "gated delta net": (
        "rlcore_qwen.qwen3_5:DenseBridge",
        Qwen3_5TextConfig(**SHAPE, **DELTA, layer_types=["linear_attention", "full_attention"]),
    ),
    "gated attention": (
        "rlcore_qwen.qwen3_5:DenseBridge",
        Qwen3_5TextConfig(**SHAPE, **DELTA, layer_types=["full_attention", "linear_attention"]),
    ),
    "sparse attention": ("rlcore_deepseek.bridge:SparseDeepseekBridge", DeepseekV32Config(**SHAPE, **LATENT)),
    "window and sinks": ("rlcore_gpt_oss.bridge:GptOssBridge", GptOssConfig(**SHAPE, **EXPERTS, **WINDOW)),
}


def caught(layer: torch.nn.Module, run: Callable[[], Any]) -> tuple[tuple[Any, ...], dict[str, Any], Tensor]:
    """What `layer` is called with while `run` runs, and what it gives."""
    found: list[Any] = []
    handle = layer.register_forward_hook(
        lambda _, args, kwargs, out: found.append((args, kwargs, out)), with_kwargs=True
    )
    run()
    handle.remove()
    args, kwargs, out = found[0]
    return args, kwargs, out[0] if isinstance(out, tuple) else out


def seconds_of(layer: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], float]:
    """Seconds of all threads for the layer's output and the gradients of its input and weights."""
    hidden = args[0] if args else kwargs["hidden_states"]
    slopes = torch.randn(hidden.shape)
    weights = [one for one in layer.parameters() if one.requires_grad]

    def step() -> float:
        leaf = hidden.detach().requires_grad_()
        begin = time.process_time()
        out = layer(leaf, *args[1:], **kwargs) if args else layer(**{**kwargs, "hidden_states": leaf})
        out = out[0] if isinstance(out, tuple) else out
        torch.autograd.grad((out * slopes.view_as(out)).sum(), [leaf, *weights], allow_unused=True)
        return time.process_time() - begin

    return step


def main() -> None:
    """Each block in alternation, in one process."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=15, help="pairs of measurements")
    args = options.parse_args()
    facts = machine(args.threads)
    parallel.start(0, 1, "127.0.0.1", free_port())
    torch.set_num_threads(args.threads)
    keep_memory()
    rows = [_row(name, args.work / "model-block", args.repeats) for name in BLOCKS]
    parallel.stop()
    publish("blocks", facts, {"rows": rows}, table(rows), dry=args.dry)


def _row(name: str, path: Any, repeats: int) -> Row:
    factory, config = BLOCKS[name]
    shutil.rmtree(path, ignore_errors=True)
    make_checkpoint(path, config)
    tokens = torch.randint(1, 512, (SAMPLES, TOKENS + 1), generator=torch.Generator().manual_seed(0))
    batch = TrainBatch(
        tokens=tokens.flatten(),
        prompt_lengths=torch.ones(SAMPLES, dtype=torch.int64),
        response_lengths=torch.full((SAMPLES,), TOKENS),
    )
    bridge = Part(name="block", factory=factory)
    role = Role(ModelSpec(path=str(path), bridge=bridge, dtype="fp32"), OptimizerSettings(lr=1e-4))
    layer = next(one for one in role.models[0].modules() if hasattr(one, "layers")).layers[0]
    with torch.no_grad():
        mine = caught(
            layer, lambda: role.forward(batch, temperature=1.0, tokens_per_rank=batch.tokens.numel())
        )
        loaded: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        theirs = caught(loaded.model.layers[0], lambda: loaded(tokens[:, :-1], use_cache=False))
    gap = float((mine[2].view_as(theirs[2]) - theirs[2]).abs().max())
    assert gap < 1e-4, f"{name}: the layers differ by {gap}"
    step, plain = seconds_of(layer, *mine[:2]), seconds_of(loaded.model.layers[0], *theirs[:2])
    step(), plain()
    ours, other, ratio = pairs(step, plain, repeats, name)
    target = {"target": f"≤ {MOST}", "met": verdict(ratio <= MOST)} if name == "gated delta net" else {}
    return {
        "block": name,
        "rlcore, s": ours,
        "transformers, s": other,
        "ratio": ratio,
        "target": "",
        "met": "",
    } | target


if __name__ == "__main__":
    main()
