"""The demo's flags, changed only to a model directory, a prompt file and the real SGLang server."""

import json
import os
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from command import Run, rows
from layouts import HELD_OUT, LAYOUTS, PROMPTS, SIZES, STEPS, own_input, requests_served
from refusals import sentence

from rlcore_sglang.models import LATENT, PUBLISHED

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

PYTHON = "RLCORE_SGLANG_PYTHON"
LIMIT_S = 800.0
WAYS = {"tp2_sp": ("tensor", "tensor"), "pp2": ("broadcast", "distributed")}
"""Layout → how its weights are published, and SGLang's name for it."""
REQUESTS = STEPS * PROMPTS + 2 * HELD_OUT
"""That a run makes at least: there are two evaluations."""


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """8 layers of width 256."""
    assert PYTHON in os.environ, f"{PYTHON} must name the interpreter that has sglang (`make test-sglang`)"
    shape: dict[str, Any] = {
        "num_hidden_layers": 8,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 8,
    }
    own = own_input(tmp_path_factory.mktemp("sglang"), **shape)
    return (*own, *SIZES, "--engine", "sglang", "--engine.python", os.environ[PYTHON])


def test_a_field_that_sglang_lacks_is_refused(run: Run, flags: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    wrong = ("--sglang.tp-siez", "2", "--run-dir", str(folder))
    refusal = sentence(run("train", "--algo", "grpo", *flags, *wrong, code=2).stderr)
    assert "--sglang.tp-siez" in refusal
    assert "tp_size" in refusal
    assert not folder.exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "of a DeepseekV3ForCausalLM SGLang reads moe_layer_freq of config.json, found none, expected 1"),
        (
            PUBLISHED[LATENT],
            "knows no positions of a DeepseekV3ForCausalLM but yarn, found rope_type 'default'",
        ),
    ],
    ids=["unpublished", "positions"],
)
def test_a_model_that_sglang_cannot_load_is_refused(
    run: Run, tmp_path: Path, changes: Mapping[str, Any], said: str
) -> None:
    config = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", **changes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    folder, engine = tmp_path / "run", ("--engine", "sglang", "--engine.python", os.environ[PYTHON])
    model = ("--model", str(tmp_path), "--task", "copy", "--run-dir", str(folder))
    assert said in sentence(run("train", "--algo", "grpo", *model, *engine, code=2).stderr)
    assert not folder.exists()


def _train(run: Run, folder: Path, *flags: str) -> None:
    """A run of `STEPS`, whose engines and trainer agree in each."""
    arguments = ("train", "--algo", "grpo", *flags, "--run-dir", str(folder), "--json")
    summary = json.loads(run(*arguments, limit=LIMIT_S).stdout)
    assert (summary["steps"], summary["exit_reason"]) == (STEPS, "completed")
    trained = rows(folder)[1:]
    assert [row["weight_version"] for row in trained] == list(range(STEPS))
    for row in trained:
        assert 0 <= row["train/kl_engine_max"] <= 1e-4
        assert row["train/grad_norm"] > 0


@pytest.mark.parametrize("layout", WAYS)
def test_trains_with_a_real_sglang(run: Run, flags: tuple[str, ...], tmp_path: Path, layout: str) -> None:
    folder, (way, name) = tmp_path / "run", WAYS[layout]
    _train(run, folder, *flags, *LAYOUTS[layout], "--engine.publish", way)
    assert requests_served(folder, "/generate") >= REQUESTS
    assert requests_served(folder, f"/update_weights_from_{name}") >= STEPS


def test_groups_with_settings_of_their_own_serve_together(
    run: Run, flags: tuple[str, ...], tmp_path: Path
) -> None:
    """Each log says how many samples its server worked on at once."""
    folder, most = tmp_path / "run", {"wide": 8, "narrow": 3}
    groups = [part for name in most for part in ("--engine-group", f"{name}=1")]
    for name, samples in most.items():
        groups += [f"--engine-group.{name}.max-running-requests", str(samples)]
    _train(run, folder, *flags, *groups, "--sglang.decode-log-interval", "1")
    assert sum(requests_served(folder, "/generate", engine) for engine in range(2)) >= REQUESTS
    for engine, samples in enumerate(most.values()):
        log = (folder / "logs" / f"engine-{engine}.log").read_text(errors="replace")
        assert max(map(int, re.findall(r"Decode batch.*#running-req: (\d+)", log))) == samples
        assert requests_served(folder, "/update_weights_from_disk", engine) >= STEPS


def test_evaluates_with_a_real_sglang(run: Run, flags: tuple[str, ...]) -> None:
    """Without a GPU here, none is asked of the cluster."""
    given = dict(pairwise(flags))
    names = ("--model", "--data", "--engine", "--engine.python")
    chosen = [part for name in names for part in (name, given[name])]
    limits = ("--max-prompt-tokens", "64", "--max-response-tokens", "8", "--prompts", "4")
    found = json.loads(run("eval", *chosen, *limits, "--json", limit=LIMIT_S).stdout)
    assert list(found["prompts"].values()) == [4]
