"""Architectures without a bridge: log-probs, gradients and names are those of transformers."""

from __future__ import annotations

import functools
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from architectures import ARCHITECTURES, BASE, PADDED, REFUSED
from fsdp_ranks import join, model_of, policy_of, policy_spec, scores, train
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.qwen3_next import modeling_qwen3_next

from rlcore import AdapterSpec, CheckpointError, OptimizerSettings, TokenOutputs
from rlcore_fsdp.build import empty_model
from rlcore_fsdp.checkpoint import FORMAT, SavedModel
from rlcore_fsdp.config import FsdpConfig
from rlcore_fsdp.shards import whole
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import random_batch
from rlcore_testing.trainer_reference import hf_distributions, hf_model, linear_loss
from rlcore_toolkit import WeightNames, use_kernels

SETTINGS = OptimizerSettings(lr=1e-2, clip_grad=0.0, adam_eps=1e-4)
EXACT = 1e-5


def write_model(name: str, path: Path) -> Path:
    """A tiny random model of an architecture."""
    auto: Any = AutoModelForCausalLM
    torch.manual_seed(0)
    auto.from_config(AutoConfig.for_model(name, **{**BASE, **ARCHITECTURES[name]})).save_pretrained(path)
    return path


def stepped(rank: int, world: int, port: int, path: str, config: FsdpConfig) -> dict[str, Any]:
    """A forward on the whole batch, and a step on this rank's share of it.

    How far log-probs and gradients are from those of transformers, the norm of the gradient, the weights
    after the step, and the names of the directory.
    """
    joined = join(rank, world, port, config)
    policy = policy_of(joined, policy_spec(model_of(path), None, SETTINGS))
    batch = random_batch(8)
    log_probs = scores(policy, batch)
    reference = hf_model(path)
    _, wanted = hf_distributions(reference, batch)
    linear_loss(TokenOutputs(log_probs=wanted), batch).total.backward()
    embedded: list[int] = []
    embedding = policy.net.model.get_input_embeddings()
    embedding.register_forward_hook(lambda _, __, out: embedded.append(out[..., 0].numel()))
    result = train(policy, batch, rank, world)
    gradients = {name: whole(one.grad) for name, one in policy.net.model.named_parameters()}
    far = [
        float((gradients[name] - (0 if one.grad is None else one.grad)).abs().max())
        for name, one in reference.named_parameters()
    ]
    weights = {name: tensor.clone() for name, tensor in policy.hf_tensors()}
    files = set[str]().union(*(load_file(file) for file in Path(path).glob("*.safetensors")))
    joined.stop()
    return {
        "log_probs": float((log_probs - wanted).abs().max()),
        "gradient": max(far),
        "norm": result.grad_norm,
        "weights": weights,
        "names": files,
        "packing": policy.packing,
        "spared": int(batch.lengths[rank::world].sum()) - sum(embedded),
    }


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in REFUSED])
def test_an_architecture_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    [report] = run_ranks(stepped, 1, str(write_model(name, tmp_path / name)), FsdpConfig())
    assert report["log_probs"] < EXACT
    assert report["gradient"] < EXACT * max(1.0, report["norm"])
    assert report["weights"].keys() == report["names"]
    assert report["packing"].startswith("a row" if name in PADDED else "packs")
    # of a prompt that two samples share, and the last token of each sample, which predicts nothing
    assert (report["spared"] > 8) == (name not in PADDED)


@pytest.mark.parametrize(
    ("name", "kinds"), [("mistral", {"_linear", "_norm", "_gated"}), ("gemma2", {"_linear"})]
)
def test_kernels_replace_the_layers_that_compute_the_same(name: str, kinds: set[str]) -> None:
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(AutoConfig.for_model(name, **{**BASE, **ARCHITECTURES[name]}))
    before = torch.get_rng_state()
    use_kernels(model)
    assert torch.equal(torch.get_rng_state(), before)
    replaced = [vars(module)["forward"].args[1] for module in model.modules() if "forward" in vars(module)]
    assert {kernel.__name__ for kernel in replaced} == kinds


class Detached(nn.Module):
    """An RMS norm whose scale has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(4)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (x.detach().square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


def test_a_layer_with_other_gradients_keeps_its_own_code() -> None:
    use_kernels(layer := Detached())
    assert "forward" not in vars(layer)


def test_random_states_of_another_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"format": FORMAT, "ranks": 1, "steps": 0}))
    save_file({}, tmp_path / "rank-00000.safetensors")
    torch.save({"python": [0]}, tmp_path / "random-00000.pt")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        with pytest.raises(CheckpointError, match="cannot be read"):
            SavedModel(tmp_path).restore_random()
    finally:
        dist.destroy_process_group()


def packing(rank: int, world: int, port: int, path: str, adapter: AdapterSpec | None) -> str:
    """How a policy in bf16 reads packs."""
    joined = join(rank, world, port, FsdpConfig())
    found: str = policy_of(joined, policy_spec(model_of(path, "bf16"), adapter)).packing
    joined.stop()
    return found


RULE = "torch_chunk_gated_delta_rule"


def borrowing(rank: int, world: int, port: int, path: str) -> bool:
    """Whether the gated delta rule is torch's in the end, where a kernel of it fails on the last rank."""
    plain: Any = inspect.unwrap(vars(modeling_qwen3_next)[RULE])

    @functools.wraps(plain)
    def kernel(*args: Any, **options: Any) -> Any:
        if rank == world - 1:
            raise RuntimeError("out of resource: shared memory")
        return plain(*args, **options)

    vars(modeling_qwen3_next)[RULE] = kernel
    joined = join(rank, world, port, FsdpConfig())
    policy_of(joined, policy_spec(model_of(path), None))
    joined.stop()
    return vars(modeling_qwen3_next)[RULE] is plain


def test_a_kernel_that_fails_on_one_rank_computes_on_none(tmp_path: Path) -> None:
    small = {name: BASE[name] for name in ("vocab_size", "hidden_size", "intermediate_size")}
    heads = dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "num_attention_heads"), 2)
    sizes = dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "head_dim"), 8)
    kinds = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "num_experts": 0}
    config = AutoConfig.for_model("qwen3_next", **small, **heads, **sizes, **kinds, pad_token_id=0)
    auto: Any = AutoModelForCausalLM
    auto.from_config(config).save_pretrained(tmp_path)
    assert run_ranks(borrowing, 2, str(tmp_path)) == [True, True]


@pytest.mark.parametrize("name", ["gpt_neox", "olmoe", "jamba"])
def test_rounding_hides_no_leak(name: str, tmp_path: Path) -> None:
    [found] = run_ranks(packing, 1, str(write_model(name, tmp_path / name)), None)
    assert found.startswith("a row" if name in PADDED else "packs")


def test_an_adapter_that_the_model_never_calls_is_refused(tmp_path: Path) -> None:
    spec = AdapterSpec(rank=2, alpha=4, targets=("dt_proj", "in_proj"))
    with pytest.raises(RuntimeError, match=r"ConfigError: --lora\.targets: found dt_proj, whose weight"):
        run_ranks(packing, 1, str(write_model("jamba", tmp_path)), spec)


@pytest.mark.full
@pytest.mark.parametrize("name", REFUSED)
def test_an_architecture_that_cannot_be_trained_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=f"ModelError: --model: .*{REFUSED[name]}"):
        run_ranks(stepped, 1, str(write_model(name, tmp_path / name)), FsdpConfig())


def test_layers_for_multi_token_prediction_are_left_out(tmp_path: Path) -> None:
    drafts = [
        "model.layers.61.eh_proj.weight",  # DeepSeek-V3, GLM-4.5
        "model.language_model.layers.46.enorm.weight",  # GLM-4.5V
        "mtp.fc.weight",  # Qwen3-Next
        "model.mtp_layers.0.input_proj.weight",  # MiMo
        "model.mtp.layers.0.eh_proj.weight",  # MiMo-V2
        "model.mtp_block.0.mlp.up_proj.weight",  # ERNIE 4.5
    ]
    towers = ["model.visual.blocks.0.mlp.weight", "vision_tower.layers.0.mlp.weight"]
    names = WeightNames(empty_model(str(write_model("gemma2", tmp_path)), "fp32"), [*drafts, *towers])
    assert names.carried == towers


def test_weights_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    path = write_model("gemma2", tmp_path)
    weights = load_file(path / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RuntimeError, match=r"ModelError: .*weight 'model\.norm\.weight' holds NaN"):
        run_ranks(stepped, 1, str(path), FsdpConfig())


@pytest.mark.parametrize(
    ("name", "ranks", "recompute"),
    [("gemma2", 2, True), pytest.param("mixtral", 4, False, marks=pytest.mark.full), ("bamba", 4, False)],
)
def test_several_ranks_are_one(name: str, ranks: int, recompute: bool, tmp_path: Path) -> None:
    """Also where a rank has fewer micro-batches, other experts, or computes its blocks again."""
    path = str(write_model(name, tmp_path / name))
    [alone] = run_ranks(stepped, 1, path, FsdpConfig())
    for report in run_ranks(stepped, ranks, path, FsdpConfig(recompute=recompute)):
        assert report["log_probs"] < EXACT
        assert report["gradient"] < EXACT
        assert report["norm"] == pytest.approx(alone["norm"], rel=EXACT)
        assert report["weights"].keys() == alone["weights"].keys()
        far = [float((report["weights"][key] - one).abs().max()) for key, one in alone["weights"].items()]
        assert max(far) < 1e-4
