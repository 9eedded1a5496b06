"""Measure the gaps of docs/models.md, family by family, into benchmarks/results/gaps.json.

    python scripts/gaps.py [--sglang .venv-sglang/bin/python] [--only bridge|layouts|replay|sglang] [FAMILY …]

fp32 on the CPU, a few minutes for each family; what is not measured this time stays as it is.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gaps_bridge
import gaps_layouts
import gaps_replay
import gaps_sglang

FAMILIES = tuple(dict.fromkeys([*gaps_sglang.FAMILIES, *gaps_replay.CONFIGS]))
"""The first in the table; the others follow as they are measured."""
RESULTS = Path(__file__).parents[1] / "benchmarks/results/gaps.json"
LIBRARIES = ("torch", "transformers", "megatron-core", "mbridge")

Measure = Callable[[], Mapping[str, Any]]


def main() -> None:
    """One row a family."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sglang", default="", help="the Python of an environment with SGLang")
    parser.add_argument(
        "--only", choices=("bridge", "layouts", "replay", "sglang"), help="one kind of measurement"
    )
    parser.add_argument("family", nargs="*", help="these alone")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # megatron's, of settings that rlcore chose
    libraries = {name: version(name) for name in LIBRARIES}
    if args.sglang:
        libraries["sglang"] = gaps_sglang.version(args.sglang)
    for kind, family, measure in _wanted(args.only, args.family, args.sglang):
        found = measure()
        print(family, json.dumps(found), flush=True)
        _keep(kind, family, found, libraries)


def _keep(kind: str, family: str, found: Mapping[str, Any], libraries: Mapping[str, str]) -> None:
    results: dict[str, Any] = (
        json.loads(RESULTS.read_text()) if RESULTS.exists() else {"families": {}, "measured": {}}
    )
    families = results["families"]
    families[family] = {**families.get(family, {}), **found}
    results["families"] = {name: families[name] for name in (*FAMILIES, *families) if name in families}
    results["measured"][f"{family}, {kind}"] = {"date": time.strftime("%Y-%m-%d"), **libraries}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def _wanted(only: str | None, families: list[str], sglang: str) -> Iterator[tuple[str, str, Measure]]:
    def asked(kind: str, family: str) -> bool:
        return only in (None, kind) and (not families or family in families)

    for family in gaps_sglang.FAMILIES if sglang else ():
        if asked("sglang", family):
            yield "sglang", family, partial(gaps_sglang.measured, family, sglang)
    for family in gaps_replay.CONFIGS:
        if asked("replay", family):
            yield "replay", family, partial(gaps_replay.measured, family)
    for suite in gaps_bridge.suites():
        family = gaps_bridge.family_of(suite)
        if asked("bridge", family):
            yield "bridge", family, partial(gaps_bridge.measured, suite)
        if asked("layouts", family):
            yield "layouts", family, partial(gaps_layouts.measured, suite)


if __name__ == "__main__":
    main()
