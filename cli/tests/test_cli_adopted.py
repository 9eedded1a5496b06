"""A model that comes with code of its own is read as its family adopts it, by a run and by a plan."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from runs import installed

from rlcore.compose.models import read_config
from rlcore.config.layers import Layer
from rlcore_cli.resolve import resolve_model
from rlcore_cli.select import select
from rlcore_toolkit import read_config as planned_config

CONFIG: dict[str, Any] = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "auto_map": {}}


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a model in the hub's cache, where `acme/some` finds it; nothing else is there."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cached = tmp_path / "models--acme--some" / "snapshots" / "0"
    cached.mkdir(parents=True)
    (cached / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "models--acme--some" / "refs").mkdir()
    (tmp_path / "models--acme--some" / "refs" / "main").write_text("0")
    return cached


@pytest.mark.parametrize("name", ["{folder}", "acme/some", "mimo-7b"], ids=["directory", "hub id", "size"])
def test_a_model_is_read_as_its_family_adopts_it(published: Path, name: str) -> None:
    model, registry = name.format(folder=published), installed().registry
    planned = planned_config(model, registry)
    assert not (published.parents[2] / "cache").exists(), "a plan makes a copy"
    chosen = resolve_model(select(registry, None, Layer(label="", values={"model": model})))
    assert chosen.path
    for config in (read_config(chosen.path), planned):
        assert config["model_type"] == "qwen2"
        assert not config.get("auto_map")
    assert Path(chosen.path).is_dir() == (name != "mimo-7b")
