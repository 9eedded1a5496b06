"""The published sizes, built without memory: by transformers, and by megatron where a bridge claims them."""

import json
import tomllib
from collections.abc import Mapping
from decimal import Decimal
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


PUBLISHED = tomllib.loads(
    Path(__file__).with_name("published_parameters.toml").read_text(), parse_float=Decimal
)
"""Size → its parameters, and the active ones of a mixture, as the model cards say."""

WITHIN, ACTIVE_WITHIN = 0.001, 0.09
OTHERWISE: Mapping[str, float] = {
    "deepseek-v3.2": 0.0014,  # its card has the number of V3, which has no indexers
    **{"glm-4.5": 0.007, "glm-4.5-air": 0.009, "minimax-m2": 0.006},  # what their cards count is not known
    **{"qwen2.5-14b": 0.005, "qwen2.5-32b": 0.009, "qwen3.5-397b-a17b": 0.002},  # as above
    "ministral-3-8b": 0.011,  # its card cuts, and does not round
}
"""How far a card is from what its config.json gives, where that is more than its rounding."""
ACTIVE_OTHERWISE: Mapping[str, float] = {
    "qwen3-30b-a3b": 0.017,  # its card cuts, and does not round
}
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
    total, *of_active = PUBLISHED[name]
    within = OTHERWISE.get(name, max(WITHIN, _rounding(total)))
    assert parameters(facts) == pytest.approx(float(total), rel=within)
    if of_active:
        active, left_out = of_active
        found = active_parameters(facts) - left_out * facts.vocabulary * facts.hidden
        within = ACTIVE_OTHERWISE.get(name, min(ACTIVE_WITHIN, _rounding(active)))
        assert found == pytest.approx(float(active), rel=within)
    else:
        assert active_parameters(facts) == parameters(facts)


def _rounding(published: Decimal) -> float:
    """How far a number may be from the one that was rounded to it, relative to it."""
    return 0.5 * 10.0 ** int(published.as_tuple().exponent) / float(published)


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
