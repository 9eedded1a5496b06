"""slime's run scripts: each translates, and runs whose model has a bridge pass rlcore's checks."""

from pathlib import Path

import pytest
from slime_runs import RUNS, SIZES, translated
from slime_table import PAGE, row

from rlcore.plugins.loader import load
from rlcore_import.translation import Verdict

REGISTRY = load().registry
NO_BRIDGE = {
    "glm5-744B-A40B": {"--spec"},
    "glm5.2-744B-A40B": {"--spec", "--sglang-config"},
    "mimo-7B-rl-eagle": {"--enable-mtp-training"},
    "minimax-m2": {"--spec"},
    "qwen3-next-80B-A3B": {"--spec"},
    "qwen3.5-27B": {"--spec"},
    "qwen3.5-35B-A3B-sft": {"--spec"},
}
"""Scripts of families that rlcore lacks: what of them is not possible."""
NOT_POSSIBLE = {**NO_BRIDGE, "glm4.7-30B-A3B": {"--enable-mtp-training"}}


REFUSED = {"glm4.7-30B-A3B": "--ranks: found 8, expected a multiple of 16"}
"""megatron-core refuses it as well: 8 expert-parallel ranks in 2 stages take 16 GPUs, and there are 8."""


NO_FIT = {
    **dict.fromkeys(("kimi-k2-Instruct", "kimi-k2-Thinking"), "for engine's weights"),
    "glm4.7-30B-A3B": "EP × PP = 16 does not divide 8 GPUs",
}
"""Kimi-K2 in bf16 takes 128 GB of each of an engine's 16 GPUs; slime's engines hold it in FP8."""


@pytest.mark.parametrize("name", RUNS)
def test_a_script_translates(name: str) -> None:
    rows = translated(name, REGISTRY).rows
    found = {row.flag for row in rows if row.said.verdict in (Verdict.IMPOSSIBLE, Verdict.UNKNOWN)}
    assert found == NOT_POSSIBLE.get(name, set())
    assert set(SIZES) | set(NO_BRIDGE) == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_its_dry_run_and_plan_are_those_of_the_documentation(name: str, tmp_path: Path) -> None:
    found = row(name, REGISTRY, tmp_path)
    assert found in PAGE.read_text().splitlines(), "run scripts/slime_runs_table.py"
    assert ("no model family" in found) == (name not in SIZES)
    if name in SIZES:
        assert REFUSED.get(name, "| passes |") in found
        assert NO_FIT.get(name, "| fits: train ") in found
