"""A model with latent attention: every way of publication brings all of it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rlcore import EngineClient, Publisher, Request, Sampling
from rlcore.engines.publish import verify_by_reload
from rlcore_deepseek.tiny import CONFIG
from rlcore_testing.publication import publish
from rlcore_toolkit import write_tiny_model

PROMPT = (10, 20, 30, 40, 50, 60, 70)
TOLERANCE = 1e-4
YARN = {
    **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
}
LATENT = {
    **CONFIG,
    **{"vocab_size": 512, "rope_parameters": YARN, "q_lora_rank": 24, "n_group": 4, "topk_group": 2},
    **{"v_head_dim": 128, "routed_scaling_factor": 2.5},
}
"""An output projection that fills a bucket lies between the two matrices of which SGLang makes one."""


@pytest.fixture(scope="module")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two that differ in their weights only, router biases included."""
    root = tmp_path_factory.mktemp("latent")
    return _model(root / "a", 0), _model(root / "b", 1)


def _model(path: Path, seed: int) -> Path:
    write_tiny_model(path, LATENT, seed)
    file, draw = path / "model.safetensors", torch.Generator().manual_seed(seed)
    weights = load_file(file)
    for name, tensor in weights.items():
        if tensor.ndim == 1:
            weights[name] = tensor + 0.1 * torch.randn(tensor.shape, generator=draw)
    save_file(weights, file, metadata={"format": "pt"})
    return path


async def test_a_publication_brings_all_of_it(
    client: EngineClient, publisher: Publisher, tiny_models: tuple[Path, Path]
) -> None:
    first, second = tiny_models
    for version, path in ((1, second), (2, first)):
        weights = load_file(path / "model.safetensors")
        location = await publish(publisher, [client], weights.items(), version)
        (one,) = await client.generate(Request(input_ids=PROMPT, sampling=Sampling(max_tokens=32)))
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        with torch.no_grad():
            logits = model(torch.tensor([[*PROMPT, *one.token_ids]])).logits[0, len(PROMPT) - 1 : -1]
        wanted = logits.log_softmax(-1).gather(1, torch.tensor(one.token_ids)[:, None])[:, 0]
        assert float((wanted - torch.tensor(one.log_probs)).abs().max()) <= TOLERANCE
        await verify_by_reload(publisher, client, location, path)
