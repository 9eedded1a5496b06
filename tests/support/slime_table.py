"""The table of slime's run scripts, tests/slime/runs.md: what becomes of each.

Run this file to write it anew: that takes half a minute.

Each is translated, its dry run is made, and its layout is planned for the GPUs that the script names, of
80 GB each, or of `MEMORY_OF`. The last column: the layout of test_slime_layouts.py.
"""

import contextlib
import io
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from slime_layouts import SCALED
from slime_runs import RUNS, translated, write_inputs

from rlcore import Registry, dump_settings
from rlcore.plugins.loader import load
from rlcore_cli.main import run
from rlcore_import.translation import FlagVerdict

PAGE = Path(__file__).parents[1] / "slime" / "runs.md"
GB, MEMORY = 10**9, 80
COLUMNS = (
    "script",
    "ranks",
    "flags: translated, implied, no meaning, not possible",
    "dry run",
    "plan",
    "trained here",
)
VERDICTS = (FlagVerdict.TRANSLATED, FlagVerdict.IMPLIED, FlagVerdict.IDLE, FlagVerdict.IMPOSSIBLE)


CHANGES: Mapping[str, str] = {
    "glm4.7-30B-A3B": "--expert-model-parallel-size 4",
    "minimax-m2": "--expert-model-parallel-size 32",
    **dict.fromkeys(
        ("kimi-k2-Instruct", "kimi-k2-Thinking"), "--rollout-num-gpus-per-engine 32 --sglang-ep-size 32"
    ),
}
"""Scripts that do not run on 80 GB as they are → the flags with which they do, behind their own."""
CORRECTED = frozenset({"glm4.7-30B-A3B"})
"""Those of them that do not start at all as they are."""
MEMORY_OF: Mapping[str, int] = {
    **dict.fromkeys(("glm5-744B-A40B", "kimi-k2-Instruct", "kimi-k2-Thinking"), 141),
    "minimax-m2": 288,
}
"""Scripts for larger GPUs. An engine has 62 GB of weights on each GPU for GLM-5, 71 GB in FP8 for Kimi-K2. An
eighth of the gradients of minimax-m2's experts, in fp32, is 112 GB."""


def rows(registry: Registry) -> Iterator[str]:
    """A row of the table for each script, and one for each that runs with changes."""
    for name in RUNS:
        for more in ("", *([CHANGES[name]] if name in CHANGES else ())):
            with tempfile.TemporaryDirectory() as folder:
                yield row(name, registry, Path(folder), more)


def row(name: str, registry: Registry, folder: Path, more: str = "") -> str:
    """Of one script with the flags `more`, whose files are made in `folder`."""
    found = translated(name, registry, more)
    counts = Counter(one.outcome.verdict for one in found.rows)
    cells = [
        f"with `{more}`" if more else f"`{name}`",
        str(found.settings["ranks"]),
        ", ".join(str(counts[verdict]) for verdict in VERDICTS),
    ]
    write_inputs(folder, name, found.settings, registry)
    (folder / "run.toml").write_text(dump_settings(found.settings))
    with contextlib.chdir(folder):
        code, _, error = _said("train", "--config", "run.toml", "--dry-run")
        dry = "passes" if code == 0 else error.removeprefix("error: ").strip()
        memory = MEMORY if more else MEMORY_OF.get(name, MEMORY)
        _, planned, _ = _said("plan", "--config", "run.toml", "--gpu-memory", str(memory), "--json")
    plan = ("" if memory == MEMORY else f"{memory} GB: ") + _plan(json.loads(planned))
    is_trained = bool(more) == (name in CORRECTED)
    return _joined([*cells, dry, plan, SCALED[name].name if is_trained else ""])


def _said(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    return code, out.getvalue(), err.getvalue()


def _plan(found: dict[str, Any]) -> str:
    if not found["fits"]:
        return f"no: {found['reason']}"
    peak = {phase["name"]: f"{phase['total'] / GB:.0f}" for phase in found["phases"]}
    return "fits: " + ", ".join(f"{name} {size} GB" for name, size in peak.items())


def _joined(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    head = [_joined(COLUMNS), "|" + " --- |" * len(COLUMNS)]
    introduction = PAGE.read_text().partition("| script |")[0]
    PAGE.write_text(introduction + "\n".join([*head, *rows(load().registry)]) + "\n")
