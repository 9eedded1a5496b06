"""An adapter that travels alone: what the server is told, what is refused, and what travels."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from launches import launch
from safetensors.torch import load_file, save_file

from rlcore import AdapterSpec, ConfigError, RunConfig, WeightForms
from rlcore_sglang.adapters import adapter_fields, check_adapters
from rlcore_sglang.config import SglangConfig
from rlcore_sglang.engine import SglangEngine
from rlcore_sglang.fields import ServerFields
from rlcore_toolkit import adapted_modules, adapter_name, published_adapter, write_adapter

SPEC = AdapterSpec(rank=2, alpha=8.0)
SHAPES = {
    "self_attn.q_proj": (8, 4),
    "self_attn.k_proj": (4, 4),
    "self_attn.v_proj": (4, 4),
    "self_attn.in_proj_z": (4, 4),
    "mlp.gate_proj": (6, 4),
    "mlp.up_proj": (6, 4),
    "mlp.down_proj": (4, 6),
    "mlp.experts.0.down_proj": (4, 64),
}
PLAIN = ("q_proj", "v_proj", "gate_proj", "up_proj", "mlp.down_proj")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 1}))
    save_file(
        {f"model.layers.0.{name}.weight": torch.ones(shape) for name, shape in SHAPES.items()},
        folder / "model.safetensors",
    )
    return folder


def tensors_of(model: Path, spec: AdapterSpec) -> dict[str, torch.Tensor]:
    return {
        adapter_name(module, part): torch.ones((spec.rank, inputs) if part == "A" else (outputs, spec.rank))
        for module, (outputs, inputs) in adapted_modules(model, spec).items()
        for part in "AB"
    }


def other(model: Path, folder: Path, spec: AdapterSpec) -> str:
    folder.mkdir()
    write_adapter(folder, spec, model, tensors_of(model, spec))
    return f"other={folder}"


def test_a_server_is_told_of_the_adapter_and_of_the_users(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlcore_sglang.fields.require_version", lambda *_: "0.5.23")
    targets = AdapterSpec(rank=2, alpha=8.0, targets=("q_proj", "v_proj"))
    wide = AdapterSpec(rank=3, alpha=1.0, targets=("mlp.down_proj",))
    fields = {"lora-paths": other(model, tmp_path / "other", wide)}
    command = SglangEngine(SglangConfig()).command(
        launch(model_path=str(model), overlays={"": targets}, fields=fields)
    )
    line = " ".join(command.argv)
    assert "--enable-lora --max-lora-rank 3 --lora-target-modules down_proj q_proj v_proj " in line
    assert "--max-loras-per-batch 3 --lora-strict-loading --lora-backend torch_native " in line
    assert line.endswith(f"--lora-paths {fields['lora-paths']}")
    told = adapter_fields([targets], str(model), {}, on_gpu=True, shares_gpu=True)
    assert told["enable_weights_cpu_backup"]
    assert "lora_backend" not in told


@pytest.mark.parametrize(
    ("targets", "ranks", "said"),
    [
        (PLAIN, 1, None),
        (("in_proj_z",), 1, "of model.layers.0.self_attn.in_proj_z SGLang has no adapter"),
        (("q_proj",), 1, "q_proj only beside one of v_proj"),
        (("k_proj",), 1, "k_proj only beside one of q_proj and v_proj"),
        (("up_proj",), 1, "up_proj only beside one of gate_proj"),
        (("experts.0.down_proj",), 1, "adapters of experts"),
        (PLAIN, 2, "pads the 6 inputs of model.layers.0.mlp.down_proj to a multiple of 64"),
    ],
)
def test_what_sglang_would_compute_in_another_way(
    model: Path, targets: tuple[str, ...], ranks: int, said: str | None
) -> None:
    spec = AdapterSpec(rank=2, alpha=8.0, targets=targets)
    if said is None:
        check_adapters(spec, str(model), {}, ranks=ranks, on_gpu=False)
        return
    with pytest.raises(ConfigError, match=rf"^--lora\.publish: found adapter, but .*{said}"):
        check_adapters(spec, str(model), {}, ranks=ranks, on_gpu=False)


@pytest.mark.parametrize(
    ("version", "publish", "field", "said"),
    [
        ("0.5.18", "tensor", "lora_strict_loading", None),
        ("0.5.17", "disk", "lora_strict_loading", None),
        ("0.5.17", "tensor", "lora_strict_loading", "takes none by --engine.publish tensor"),
        ("0.5.17", "disk", "lora_backend", "it has no lora_strict_loading"),
    ],
)
def test_a_version_of_sglang_that_takes_none(
    version: str, publish: Any, field: str, said: str | None, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ServerFields(version, {field: "bool"}, {})
    monkeypatch.setattr("rlcore_sglang.fields.server_fields", lambda *_: known)
    engine, spec = SglangEngine(SglangConfig(publish=publish)), AdapterSpec(rank=2, alpha=8.0, targets=PLAIN)
    with pytest.raises(ConfigError, match=f"sglang {version} .*{said}") if said else nullcontext():
        engine.check_overlay(spec, str(model), {})


def test_adapters_of_the_user_fit_the_model(model: Path, tmp_path: Path) -> None:
    narrow = tmp_path / "narrow"
    narrow.mkdir()
    (narrow / "config.json").write_text(json.dumps({"num_hidden_layers": 1}))
    save_file({"model.layers.0.mlp.down_proj.weight": torch.ones(4, 5)}, narrow / "model.safetensors")
    spec = AdapterSpec(rank=2, alpha=8.0, targets=PLAIN)
    wrong = {
        "other": "expected NAME=DIR",
        "policy=/x": "'policy' is the run's own",
        other(narrow, tmp_path / "a", SPEC): "of another model",
        other(model, tmp_path / "b", AdapterSpec(rank=2, alpha=8.0, targets=PLAIN, rslora=True)): "alpha",
        other(model, tmp_path / "c", AdapterSpec(rank=2, alpha=8.0, targets=("up_proj",))): "gate_proj",
    }
    for paths, said in wrong.items():
        with pytest.raises(ConfigError, match=rf"^--sglang\.lora-paths: found .*{said}"):
            check_adapters(spec, str(model), {"lora-paths": paths}, ranks=1, on_gpu=False)


@pytest.mark.parametrize(
    ("publish", "fields", "run", "said"),
    [
        ("disk", {}, {}, None),
        ("tensor", {}, {"max_staleness": 1, "on_publish": "wait"}, None),
        ("delta", {}, {}, "--engine.publish: found delta"),
        ("disk", {"dp-size": "2", "enable-dp-attention": "true"}, {}, "--sglang.dp-size: found 2"),
        ("disk", {}, {"max_staleness": 1}, "--on-publish: found retract"),
        ("disk", {}, {"check_weights_every": 3}, "--check-weights-every: found 3"),
        ("disk", {"lora-paths": "a=/x"}, {"lora.publish": "merged"}, "--sglang.lora-paths: found a=/x"),
    ],
)
def test_runs_that_publish_no_adapter_to_sglang(
    publish: Any, fields: dict[str, str], run: dict[str, Any], said: str | None
) -> None:
    chosen = RunConfig.of(**{"lora.rank": 2, "lora.publish": "adapter", **run})
    complaints = [*SglangConfig(publish=publish).complaints(chosen, fields)]
    assert [one.partition(said)[1] for one in complaints] == [said] if said else complaints == []


def test_a_publication_is_a_directory_of_peft(model: Path, tmp_path: Path) -> None:
    spec = AdapterSpec(rank=2, alpha=8.0, targets=PLAIN, rslora=True)
    tensors = tensors_of(model, spec)
    publisher = (
        SglangEngine(SglangConfig())
        .publisher(weights_dir=str(tmp_path), model_path=str(model), dtype="fp32")
        .holding(WeightForms(overlays={"": spec}))
    )
    location = publisher.write(published_adapter(tensors.items(), spec), 5)
    config = json.loads((Path(location.directory) / "adapter_config.json").read_text())
    assert config["target_modules"] == ["down_proj", "gate_proj", "q_proj", "up_proj", "v_proj"]
    assert config["r"] == config["lora_alpha"] == spec.rank  # so SGLang multiplies by 1
    (file,) = Path(location.directory).glob("*.safetensors")
    written = load_file(file)
    assert written.keys() == tensors.keys()
    for name, tensor in written.items():
        assert torch.equal(tensor, tensors[name] * (spec.scale if ".lora_B." in name else 1))
