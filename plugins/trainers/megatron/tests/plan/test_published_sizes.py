"""The published sizes, built without memory: by transformers, and by megatron where a bridge claims them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rlcore import Kind, ModelFamily, Part, published_sizes
from rlcore.plugins.loader import load
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.checkpoint.streaming import on_meta
from rlcore_megatron.plan.engines import WHOLE
from rlcore_megatron.plan.layout import Layout
from rlcore_megatron.plan.weights import active_parameters, parameters, stage
from rlcore_testing.parts import part_of
from rlcore_testing.ranks import run_ranks
from rlcore_toolkit import read_config, read_facts

REGISTRY = load().registry

RECORDS = [entry.record for entry in REGISTRY.entries(Kind.MODEL)]
PRESETS = [one for one in RECORDS if isinstance(one, ModelFamily) and one.preset]


@pytest.mark.parametrize("family", PRESETS, ids=lambda family: family.name)
def test_a_preset_is_what_its_config_says(family: ModelFamily, tmp_path: Path) -> None:
    """What a dry run and a plan are told is the model that the run trains."""
    assert family.preset
    assert family.preset_config
    Part(name=family.name, factory=family.preset).load()(tmp_path, 0)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written == Part(name=family.name, factory=family.preset_config).load()


PUBLISHED = {
    "deepseek-v3": (671e9, 37e9),
    "deepseek-v3.2": (671e9, 37e9),
    "glm-4-32b": (32.6e9, None),
    "glm-4-9b": (9.4e9, None),
    "glm-4.5": (355e9, 32e9),
    "glm-4.5-air": (106e9, 12e9),
    "glm-4.7-flash": (30e9, 3.9e9),  # its name says 3, without the embeddings
    "glm-5": (744e9, 40e9),
    "glm-5.2": (744e9, 40e9),
    "gpt-oss-120b": (116.83e9, 5.13e9),
    "gpt-oss-20b": (20.91e9, 4.19e9),  # its card says 3.61, without the embeddings
    "kimi-k2": (1.03e12, 32e9),
    "llama-3-70b": (70.6e9, None),
    "llama-3-8b": (8.03e9, None),
    "ministral-3-3b": (3.4e9, None),  # here and below without the vision tower, which the cards count apart
    "ministral-3-8b": (8.4e9, None),
    "ministral-3-14b": (13.5e9, None),
    "mimo-7b": (7.62e9, None),  # without the 0.21e9 of its layer for multi-token prediction
    "mistral-7b": (7.25e9, None),
    "minimax-m2": (230e9, 10e9),
    "moonlight-16b-a3b": (16e9, 3e9),
    "qwen2.5-0.5b": (0.49e9, None),
    "qwen2.5-1.5b": (1.54e9, None),
    "qwen2.5-3b": (3.09e9, None),
    "qwen2.5-7b": (7.61e9, None),
    "qwen2.5-14b": (14.7e9, None),
    "qwen2.5-32b": (32.5e9, None),
    "qwen2.5-72b": (72.7e9, None),
    "qwen3-0.6b": (0.6e9, None),
    "qwen3-1.7b": (1.7e9, None),
    "qwen3-4b": (4.0e9, None),
    "qwen3-8b": (8.2e9, None),
    "qwen3-14b": (14.8e9, None),
    "qwen3-32b": (32.8e9, None),
    "qwen3-30b-a3b": (30.5e9, 3.3e9),
    "qwen3-235b-a22b": (235e9, 22e9),
    "qwen3-next-80b-a3b": (80e9, 3.9e9),  # its name says 3, without the embeddings
    "qwen3.5-0.8b": (0.75e9, None),  # its card counts the vision tower too
    "qwen3.5-4b": (4.2e9, None),  # as above
    "qwen3.5-9b": (9e9, None),
    "qwen3.5-27b": (27e9, None),
    "qwen3.5-35b-a3b": (35e9, 3.5e9),
    "qwen3.5-397b-a17b": (397e9, 17e9),
}
"""Parameters, and active ones of a mixture, as the model cards say. Their rounding, and whether heads of
multi-token prediction and embeddings are counted, differ."""

WITHIN, ACTIVE_WITHIN = 0.013, 0.13
UNSET = {"perform_initialization": False}
"""Drawing values for tens of thousands of experts takes a minute, of tensors without memory too."""


def test_every_published_size_is_known() -> None:
    assert set(published_sizes(REGISTRY)) == set(PUBLISHED)
    assert all("/" in read_config(name, REGISTRY)["_name_or_path"] for name in PUBLISHED), "its hub id"


@pytest.mark.parametrize("name", PUBLISHED)
def test_transformers_counts_as_many_parameters_as_were_published(name: str) -> None:
    facts, config = read_facts(name, REGISTRY), read_config(name, REGISTRY)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config).get_text_config())
    assert sum(param.numel() for param in model.parameters()) == parameters(facts)
    total, active = PUBLISHED[name]
    assert parameters(facts) == pytest.approx(total, rel=WITHIN)
    assert active_parameters(facts) == pytest.approx(active or parameters(facts), rel=ACTIVE_WITHIN)


def _by_megatron(
    rank: int, world: int, port: int, root: str, models: dict[str, tuple[Mapping[str, Any], Part]]
) -> dict[str, int]:
    parallel.start(rank, world, "127.0.0.1", port)
    found = {}
    for name, (config, bridge) in models.items():
        folder = Path(root) / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        with on_meta():
            [chunk] = bridge.build(
                path=str(folder), dtype=torch.bfloat16, settings=UNSET, value_head=False
            ).build()
        found[name] = sum(param.numel() for param in chunk.parameters())
    parallel.stop()
    return found


def test_megatron_builds_the_same_number(tmp_path: Path) -> None:
    models = {}
    for entry in REGISTRY.entries(Kind.MODEL):
        family = entry.record
        assert isinstance(family, ModelFamily)
        for name in published_sizes(REGISTRY):
            config = read_config(name, REGISTRY)
            if config["architectures"][0] in family.architectures:
                bridge = part_of(family)
                models[name] = config, bridge
    assert models
    for name, count in run_ranks(_by_megatron, 1, str(tmp_path), models)[0].items():
        assert count == parameters(read_facts(name, REGISTRY)), name


@pytest.mark.parametrize("name", ["qwen2.5-72b", "qwen3-235b-a22b", "qwen3.5-35b-a3b", "deepseek-v3"])
def test_the_stages_of_all_ranks_are_the_whole_model(name: str) -> None:
    facts = read_facts(name, REGISTRY)
    pipeline = 2 if facts.layers % 2 == 0 else facts.layers
    layout = Layout(world=2 * pipeline, tensor=2, pipeline=pipeline, expert=2)
    norms = 0
    total = 0
    for number in range(pipeline):
        for weight in stage(facts, layout, number):
            is_whole = "norm" in weight.name or weight.name in WHOLE
            norms += weight.numel if is_whole else 0
            total += weight.numel * (1 if is_whole else 2)
    assert total == parameters(facts)
    assert norms > 0
