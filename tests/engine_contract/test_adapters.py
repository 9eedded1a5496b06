"""SGLang with adapters beside its model: one that is published, and one that it has from its start."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen3ForCausalLM

from rlcore import AdapterSpec, EngineError, Part, Sampling, Span, WeightForms
from rlcore_machine import together
from rlcore_sglang.client import SglangClient
from rlcore_sglang.config import SglangConfig
from rlcore_testing.engine_reference import PROMPT, TOLERANCE, gap, log_probs, request_of
from rlcore_testing.engine_server import REQUEST_LIMIT_S, TOKEN, launch_of, serving
from rlcore_testing.publication import publish
from rlcore_toolkit import (
    adapted_modules,
    adapter_name,
    published_adapter,
    with_product,
    write_adapter,
)

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

PYTHON = "RLCORE_SGLANG_PYTHON"
SPEC = AdapterSpec(rank=4, alpha=12.0, rslora=True)
OTHER = AdapterSpec(rank=6, alpha=3.0, targets=("q_proj", "v_proj"))
GREEDY = Sampling(max_tokens=12, temperature=0.0)
RANKS = 2


def config_of(way: str) -> SglangConfig:
    assert PYTHON in os.environ, f"{PYTHON} must name the interpreter that has sglang (`make test-sglang`)"
    return SglangConfig(python=os.environ[PYTHON], publish=way)


def adapter(model: Path, spec: AdapterSpec, seed: int) -> dict[str, Tensor]:
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for module, (outputs, inputs) in adapted_modules(model, spec).items():
        for part, shape in (("A", (spec.rank, inputs)), ("B", (outputs, spec.rank))):
            tensors[adapter_name(module, part)] = torch.randn(shape, generator=generator) / 8
    return tensors


def merged(model: Path, spec: AdapterSpec, tensors: Mapping[str, Tensor]) -> Qwen3ForCausalLM:
    weights = load_file(model / "model.safetensors")
    for module in adapted_modules(model, spec):
        a, b = (tensors[adapter_name(module, part)] for part in "AB")
        weights[f"{module}.weight"] = with_product(weights[f"{module}.weight"], a, b, spec.scale)
    reference: Qwen3ForCausalLM = Qwen3ForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    reference.load_state_dict(weights, strict=False)
    return reference


@pytest.fixture(scope="module")
def opponent(tiny_models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("opponent")
    write_adapter(folder, OTHER, tiny_models[0], adapter(tiny_models[0], OTHER, 9))
    return folder


@pytest.fixture(scope="module")
def url(
    tiny_models: tuple[Path, Path], opponent: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    fields = {"lora-paths": f"opponent={opponent}", "tp-size": str(RANKS)}
    launch = launch_of(tiny_models[0], tmp_path_factory.mktemp("server"), fields=fields)
    part = Part(name="sglang", factory="rlcore_sglang.engine:SglangEngine", config=config_of("disk"))
    with serving(replace(launch, overlays={"": SPEC}), part) as one:
        yield one


@pytest.mark.parametrize("way", ["disk", "tensor"])
async def test_an_adapter_answers_as_transformers_does(
    url: str, tiny_models: tuple[Path, Path], way: str, tmp_path: Path
) -> None:
    model = tiny_models[0]
    engine = Part(name="sglang", factory="rlcore_sglang.engine:SglangEngine", config=config_of(way)).build()
    publisher = engine.publisher(weights_dir=str(tmp_path), model_path=str(model), dtype="fp32")
    publisher = publisher.holding(WeightForms(overlays={"": SPEC}))
    frozen = merged(model, OTHER, adapter(model, OTHER, 9))
    limit_s = REQUEST_LIMIT_S
    async with SglangClient(url, TOKEN, timeout_s=limit_s, control_timeout_s=limit_s) as client:
        for version in (1, 2):
            tensors = adapter(model, SPEC, version)
            await publish(publisher, [client], published_adapter(tensors.items(), SPEC), version)
            policy = merged(model, SPEC, tensors)
            expected = log_probs(policy, PROMPT[:1], PROMPT[1:])[range(len(PROMPT) - 1), PROMPT[1:]]
            assert list(await client.score(PROMPT)) == pytest.approx(expected.tolist(), abs=TOLERANCE)
            # in one batch
            (own,), (other,) = await together(
                client.generate(request_of(GREEDY, policy=name)) for name in ("", "opponent")
            )
            assert own.spans == (Span(start=0, version=version),)
            assert gap(policy, own) < TOLERANCE
            assert gap(frozen, other) < TOLERANCE < gap(policy, other)
        with pytest.raises(EngineError, match="nobody"):
            await client.generate(request_of(GREEDY, policy="nobody"))
