"""Adapters are PEFT's: their modules, their first values and their files."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

from rlcore import AdapterSpec, ConfigError, ModelError, RunConfig
from rlcore_testing.checkpoints import make_checkpoint, tensors_of
from rlcore_toolkit import adapted_modules, adapter_name, adapter_of, first_a, write_adapter, write_merged

SIZES: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_MODELS: Any = AutoModelForCausalLM  # transformers leaves much of it untyped
_PEFT: Any = peft
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # PEFT asks for it
    # PEFT warns of the ranks of joined experts, which it sets itself
    pytest.mark.filterwarnings("ignore:The following .* keys did not match:RuntimeWarning"),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lora") / "base"
    make_checkpoint(path, Qwen3Config(**SIZES, pad_token_id=None))
    return path


def write_random(folder: Path, base: Path, spec: AdapterSpec) -> None:
    torch.manual_seed(1)
    folder.mkdir()
    tensors = {}
    for module, (outputs, inputs) in adapted_modules(base, spec).items():
        tensors[adapter_name(module, "A")] = torch.randn(spec.rank, inputs)
        tensors[adapter_name(module, "B")] = torch.randn(outputs, spec.rank) * 0.1
    write_adapter(folder, spec, base, tensors)


def test_modules_and_first_values_are_those_of_peft(base: Path) -> None:
    spec = AdapterSpec(rank=4, alpha=8)
    config = _PEFT.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")
    theirs = _PEFT.get_peft_model(_MODELS.from_pretrained(base), config)
    own = {adapter_name(module, part) for module in adapted_modules(base, spec) for part in "AB"}
    assert own == set(_PEFT.get_peft_model_state_dict(theirs))
    drawn = torch.cat([first_a(spec, f"m{place}", 48).flatten() for place in range(200)])
    # PEFT's is torch's
    expected = torch.cat([torch.nn.Linear(48, 4).weight.detach().flatten() for _ in range(200)])
    ranks = torch.linspace(0, 1, 9)
    torch.testing.assert_close(drawn.quantile(ranks), expected.quantile(ranks), rtol=0, atol=5e-3)


@pytest.mark.parametrize(("fields", "rslora"), [({}, True), (EXPERTS, False)])
def test_files_are_read_by_peft_and_merged_as_it_merges(
    tmp_path: Path, fields: dict[str, Any], rslora: bool
) -> None:
    base, kind = tmp_path / "base", Qwen3MoeConfig if fields else Qwen3Config
    reference = make_checkpoint(base, kind(**SIZES, **fields, pad_token_id=None))
    write_random(tmp_path / "adapter", base, AdapterSpec(rank=4, alpha=8, rslora=rslora))
    theirs = _PEFT.PeftModel.from_pretrained(_MODELS.from_pretrained(base).eval(), tmp_path / "adapter")
    write_merged(base, tmp_path / "adapter", tmp_path / "out", "fp32", lambda done, total: None)
    ours = _MODELS.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        logits, expected = (model(reference.ids[:1]).logits for model in (ours, theirs))
        plain = _MODELS.from_pretrained(base).eval()(reference.ids[:1]).logits
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-4)
    assert (logits - plain).abs().max() > 0.1, "the adapter is applied"
    assert (
        json.loads((tmp_path / "out" / "checksums.json").read_text())["tensors"].keys()
        == tensors_of(base).keys()
    )


def test_from_an_adapter_of_peft(base: Path, tmp_path: Path) -> None:
    config = _PEFT.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], use_rslora=True)
    _PEFT.get_peft_model(_MODELS.from_pretrained(base), config).save_pretrained(tmp_path / "made")
    spec = adapter_of(RunConfig().but(**{"lora.from": str(tmp_path / "made")}), base)
    assert (spec.rank, spec.scale, len(spec.targets)) == (4, 4.0, 4)
    assert len(load_file(tmp_path / "made" / "adapter_model.safetensors")) == 8


@pytest.mark.parametrize(
    ("settings", "error", "found"),
    [
        ({"lora.rank": 4, "lora.targets": ("q_prj",)}, ConfigError, "'q_prj'"),
        ({"lora.rank": 4, "lora.targets": ("(",)}, ConfigError, "regular expression"),
        ({"lora.rank": 25}, ConfigError, "--lora.rank: found 25, expected at most 24"),
        ({"lora.from": "{other}"}, ModelError, "is of another model"),
        ({"lora.from": "{other}", "lora.alpha": 3.0}, ConfigError, "--lora.alpha: found 3.0"),
        ({"lora.from": "{nothing}"}, ConfigError, "adapter_config.json"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(
    base: Path, tmp_path: Path, settings: dict[str, Any], error: type[Exception], found: str
) -> None:
    other = tmp_path / "wide"
    make_checkpoint(other, Qwen3Config(**{**SIZES, "hidden_size": 32}, pad_token_id=None))
    write_random(tmp_path / "other", other, AdapterSpec(rank=2, alpha=4))
    places = {"{other}": str(tmp_path / "other"), "{nothing}": str(tmp_path / "nothing")}
    known = {
        name: places.get(value, value) if isinstance(value, str) else value
        for name, value in settings.items()
    }
    with pytest.raises(error, match=found.replace("(", r"\(")):
        adapter_of(RunConfig().but(**known), base)
