"""Qwen on megatron-core against transformers, on real ranks, from checkpoints whose every value is random."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

from rlcore.spec import ModelSpec, Part
from rlcore.testing.ranks import run_ranks

LENGTHS = (5, 7, 1, 7, 12)
"""The sequences of the pack: 32 tokens, two of a length, one of a single token."""
MODELS: Any = AutoModelForCausalLM  # transformers leaves much of it untyped
QWEN = Part(name="qwen", factory="rlcore_qwen.bridge:QwenBridge")
SHAPE: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
CONFIGS = {
    "qwen2_tied": Qwen2Config(**SHAPE, vocab_size=33, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SHAPE, vocab_size=34, tie_word_embeddings=False),
    "qwen3": Qwen3Config(**SHAPE, vocab_size=31, tie_word_embeddings=False, head_dim=16),
    "qwen3_yarn": Qwen3Config(
        **SHAPE, vocab_size=32, tie_word_embeddings=True, head_dim=16, rope_parameters=YARN
    ),
}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "TP2": (2, {"tensor-model-parallel-size": "2"}),
    "TP2 SP": (2, {"tensor-model-parallel-size": "2", "sequence-parallel": "true"}),
    "PP2": (2, {"pipeline-model-parallel-size": "2"}),
    "selective recompute": (1, {"recompute-granularity": "selective", "recompute-modules": "core_attn,mlp"}),
    "full recompute": (
        1,
        {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": "1"},
    ),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for each of `CONFIGS`, with reference logits and gradients beside the weights."""
    root = tmp_path_factory.mktemp("checkpoints")
    for number, (name, config) in enumerate(CONFIGS.items()):
        torch.manual_seed(number)
        model = MODELS.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
        model.save_pretrained(root / name)
        ids = torch.randint(0, config.vocab_size, (len(LENGTHS), max(LENGTHS)))
        mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
        logits = model(ids, attention_mask=mask.long()).logits[mask]
        torch.autograd.backward(_loss(logits))
        gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
        torch.save((ids[mask], logits.detach(), gradients), root / name / "reference.pt")
    return root


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_gradients_and_weights_are_those_of_transformers(checkpoints: Path, layout: str) -> None:
    ranks, fields = LAYOUTS[layout]
    for name, (logits, gradients, weights) in run_ranks(compare, ranks, checkpoints, fields)[-1].items():
        _, logits_reference, gradients_reference = torch.load(checkpoints / name / "reference.pt")
        assert (logits - logits_reference).abs().max() <= 1e-5, name
        for key, reference in gradients_reference.items():
            assert (gradients[key] - reference).abs().max() <= 1e-5 * (1 + reference.abs().max()), (name, key)
        source = load_file(checkpoints / name / "model.safetensors")
        assert weights.keys() == source.keys()
        assert all(torch.equal(weights[key], source[key]) for key in source), name


SWAPS = [
    ("layers.0.self_attn.k_proj.weight", "layers.0.self_attn.v_proj.weight"),
    ("layers.0.self_attn.k_proj.weight", "layers.1.self_attn.k_proj.weight"),
    ("layers.1.self_attn.q_norm.weight", "layers.1.self_attn.k_norm.weight"),
    ("layers.1.mlp.gate_proj.weight", "layers.1.mlp.up_proj.weight"),
    ("layers.0.input_layernorm.weight", "layers.0.post_attention_layernorm.weight"),
    ("embed_tokens.weight", "lm_head.weight"),
]


def test_each_tensor_has_its_own_place(checkpoints: Path, tmp_path: Path) -> None:
    source = load_file(checkpoints / "qwen3" / "model.safetensors")
    paths = []
    for number, pair in enumerate(SWAPS):
        first, second = (next(key for key in source if key.endswith(name)) for name in pair)
        paths.append(shutil.copytree(checkpoints / "qwen3", tmp_path / str(number)))
        swapped = {**source, first: source[second], second: source[first]}
        save_file(swapped, paths[-1] / "model.safetensors", metadata={"format": "pt"})
    _, reference, _ = torch.load(checkpoints / "qwen3" / "reference.pt")
    found = run_ranks(compare, 1, tmp_path, {})[0]
    for number, pair in enumerate(SWAPS):
        assert (found[str(number)][0] - reference).abs().max() > 1e-3, pair


@pytest.mark.parametrize("layout", ["one rank", "TP2", "PP2"])
def test_a_saved_directory_is_the_source_again(checkpoints: Path, tmp_path: Path, layout: str) -> None:
    ranks, fields = LAYOUTS[layout]
    run_ranks(save_all, ranks, checkpoints, tmp_path, fields)
    for name in CONFIGS:
        out = tmp_path / name
        index = json.loads((out / "model.safetensors.index.json").read_text())
        files = sorted(out.glob("*.safetensors"))
        assert len(files) > 2
        assert {file.name for file in files} == set(index["weight_map"].values())
        assert all(file.stat().st_size < 40_000 for file in files)
        written = {key: tensor for file in files for key, tensor in load_file(file).items()}
        source = load_file(checkpoints / name / "model.safetensors")
        assert written.keys() == source.keys() == index["weight_map"].keys()
        assert all(torch.equal(written[key], source[key]) for key in source)
        model, info = MODELS.from_pretrained(out, output_loading_info=True)
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        assert model.dtype == torch.float32
    assert not list(tmp_path.glob(".*")), "no half-written directory stays"


def test_bf16_and_the_value_head(checkpoints: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoints / "qwen3", tmp_path / "source")
    source = {
        key: value.bfloat16() for key, value in load_file(checkpoints / "qwen3" / "model.safetensors").items()
    }
    save_file(source, tmp_path / "source" / "model.safetensors", metadata={"format": "pt"})
    fields = {"tensor-model-parallel-size": "2", "sequence-parallel": "true"}
    logits, values, gradient = run_ranks(half_precision, 2, tmp_path, fields)[1]
    _, reference, _ = torch.load(checkpoints / "qwen3" / "reference.pt")
    assert logits.dtype == torch.bfloat16
    assert (logits - reference).abs().mean() < 0.05 * reference.std()
    assert values.shape == (1, sum(LENGTHS), 1)
    assert values.dtype == torch.float32
    assert not values.any()
    assert gradient.shape == (1, SHAPE["hidden_size"])
    assert gradient.abs().max() > 0
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == source.keys()
    assert all(torch.equal(written[key], source[key]) for key in source)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


def _edited(checkpoints: Path, path: Path, name: str, **config: Any) -> Path:
    shutil.copytree(checkpoints / name, path)
    values = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**values, **config}))
    return path


def test_models_that_would_be_computed_wrongly_are_refused(checkpoints: Path, tmp_path: Path) -> None:
    cases: dict[str, dict[str, Any]] = {
        "use_sliding_window is not supported": {"use_sliding_window": True},
        "rope_type 'dynamic' is not supported": {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
        },
        "hidden_act 'gelu' is not supported": {"hidden_act": "gelu"},
        "attention_bias is not supported for Qwen3": {"attention_bias": True},
        "config.json cannot be read: ValueError: `num_hidden_layers` (3)": {"num_hidden_layers": 3},
        "lacks the weight 'model.layers.2.": {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3},
        "do not fit its config.json: model.embed_tokens.weight (31, 48)": {"vocab_size": 29},
        "do not fit its config.json: model.layers.0.mlp.gate_proj.weight (80, 48)": {"intermediate_size": 84},
    }
    paths = [
        _edited(checkpoints, tmp_path / str(number), "qwen3", **changes)
        for number, changes in enumerate(cases.values())
    ]
    for expected, message in zip(cases, run_ranks(refusals, 1, paths)[0], strict=True):
        assert expected in message, message
        assert message.startswith("ModelError"), message


def _loss(logits: Tensor) -> Tensor:
    """A loss that weighs each logit differently."""
    weights = torch.sin(torch.arange(logits.numel(), dtype=torch.float32)).view_as(logits)
    return (logits * weights).sum() / logits.shape[0]


def _pack() -> Any:
    from megatron.core.packed_seq_params import PackedSeqParams

    starts = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    longest = max(LENGTHS)
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=starts,
        cu_seqlens_kv=starts,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )


def _start(rank: int, size: int, port: int, fields: dict[str, Any]) -> None:
    from rlcore.megatron import parallel
    from rlcore.megatron.fields import check_fields, split

    parallel.start(rank, size, "127.0.0.1", port, timeout=60.0, **split(check_fields(fields)).layout)


def compare(rank: int, size: int, port: int, root: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """(logits, gradients, weights) of each checkpoint; logits on the last stage only."""
    from rlcore.megatron import parallel

    _start(rank, size, port, fields)
    found = {path.name: _one(path, fields) for path in sorted(root.iterdir())}
    parallel.stop()
    return found


def _one(path: Path, fields: dict[str, Any]) -> tuple[Tensor | None, dict[str, Tensor], dict[str, Tensor]]:
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

    from rlcore.megatron import parallel
    from rlcore.megatron.build import build_model
    from rlcore.megatron.weights import hf_tensors

    built = build_model(ModelSpec(path=str(path), bridge=QWEN, megatron=fields))
    weights = {key: tensor.clone() for key, tensor in hf_tensors(built)}
    ids, _, _ = torch.load(path / "reference.pt")
    kept = []

    def step(_: Any, chunk: Any) -> Any:
        assert chunk is built.chunks[0]
        out = built.forward(ids[None], torch.zeros_like(ids)[None], _pack())

        def loss(logits: Tensor) -> tuple[Tensor, dict[str, Any]]:
            whole = gather_from_tensor_model_parallel_region(logits)[0, :, : built.hf_config.vocab_size]
            kept.append(whole.detach())
            return _loss(whole), {}

        return out, loss

    get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=None,
        model=built.chunks[0],
        num_microbatches=1,
        seq_length=ids.numel(),
        micro_batch_size=1,
        forward_only=False,
    )
    _sum_shared_gradients(built.chunks[0])
    with torch.no_grad():  # the gradients take the way of the weights
        for parameter in built.chunks[0].parameters():
            assert parameter.grad is not None
            parameter.copy_(parameter.grad)
    gradients = {key: tensor.clone() for key, tensor in hf_tensors(built)}
    return (kept[0] if parallel.is_last_stage() else None), gradients, weights


def _sum_shared_gradients(chunk: Any) -> None:
    """What megatron's `finalize_model_grads` does for a model under its DDP."""
    import torch.distributed as dist
    from megatron.core import parallel_state

    from rlcore.megatron import parallel

    for name, parameter in chunk.named_parameters():
        if getattr(parameter, "sequence_parallel", False) or "q_layernorm" in name or "k_layernorm" in name:
            dist.all_reduce(parameter.grad, group=parallel.tensor_group())
    if chunk.share_embeddings_and_output_weights and parallel.pipeline_size() > 1:
        shared = chunk.shared_embedding_or_output_weight()
        dist.all_reduce(shared.grad, group=parallel_state.get_embedding_group())


def save_all(rank: int, size: int, port: int, root: Path, out: Path, fields: dict[str, Any]) -> None:
    """Each checkpoint, read and written again in files of 20 kB."""
    from rlcore.errors import CheckpointError
    from rlcore.megatron import parallel
    from rlcore.megatron.build import build_model
    from rlcore.megatron.weights import save_hf

    _start(rank, size, port, fields)
    for name in CONFIGS:
        spec = ModelSpec(path=str(root / name), bridge=QWEN, megatron=fields)
        built = build_model(spec, trainable=False)
        save_hf(built, root / name, out / name, max_shard_bytes=20_000)
        with pytest.raises(CheckpointError, match="exists already"):
            save_hf(built, root / name, out / name)
    parallel.stop()


def half_precision(
    rank: int, size: int, port: int, root: Path, fields: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """bf16 logits, the values of a fresh value head, and the gradient of that head."""
    from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

    from rlcore.megatron import parallel
    from rlcore.megatron.build import build_model
    from rlcore.megatron.weights import save_hf

    _start(rank, size, port, fields)
    spec = ModelSpec(path=str(root / "source"), bridge=QWEN, dtype="bf16", megatron=fields)
    ids, _, _ = torch.load(root / "source" / "reference.pt")
    built = build_model(spec, trainable=False)
    logits = gather_from_tensor_model_parallel_region(
        built.forward(ids[None], torch.zeros_like(ids)[None], _pack())
    )
    save_hf(built, root / "source", root / "out")
    critic = build_model(spec, value_head=True)
    values = critic.forward(ids[None], torch.zeros_like(ids)[None], _pack())
    torch.autograd.backward(values.sum())
    gradient = critic.chunks[0].output_layer.weight.grad  # type: ignore[union-attr] # the head of GPTModel
    assert isinstance(gradient, Tensor)
    parallel.stop()
    return logits[0, :, : built.hf_config.vocab_size], values.detach(), gradient


def refusals(rank: int, size: int, port: int, paths: list[Path]) -> list[str]:
    """What building each of `paths` says."""
    from rlcore.errors import UserError
    from rlcore.megatron import parallel
    from rlcore.megatron.build import build_model

    _start(rank, size, port, {})
    messages = []
    for path in paths:
        with pytest.raises(UserError) as caught:
            build_model(ModelSpec(path=str(path), bridge=QWEN))
        messages.append(f"{type(caught.value).__name__}: {caught.value}")
    parallel.stop()
    return messages
