"""Peak memory of each process of a conversion, whatever the model's size and the number of processes.

The anonymous memory of every process (pages of files do not count), at its highest, less that of converting a
model of a few kilobytes: what is left is what the model's size costs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from common import Row, machine, parser, publish, say, table, timed, verdict

MIB = 1 << 20
POLL_S = 0.01
SHARD = 128 * MIB
ROOM_MIB = 48.0
"""What an allocator keeps back, and the names and places of many tensors."""
COPIES = 4
"""Of its largest tensor that a process may hold at once."""

TINY = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "moe_intermediate_size": 16}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "dense": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16},
    "experts": {
        **{"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 16},
        **{"moe_intermediate_size": 256, "num_experts": 32, "num_experts_per_tok": 4},
    },
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}


def main() -> None:
    """Both ways of each model, by one process and by several."""
    options = parser(__doc__)
    options.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4], help="processes")
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="which ones")
    args = options.parse_args()
    facts = machine(args.threads)
    rows = [row for name in args.models for row in _rows(name, args)]
    met = all(row["peak of a process, MiB"] <= row["bound, MiB"] for row in rows)
    text = (
        f"{table(rows)}\n\nNo process holds more than {COPIES} copies of the largest tensor and "
        f"{ROOM_MIB:.0f} MiB: {verdict(met)}."
    )
    publish("convert_memory", facts, {"rows": rows}, text, dry=args.dry)


def _rows(name: str, args: argparse.Namespace) -> list[Row]:
    work: Path = args.work / "convert_memory"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    kind = EXPERTS if name == "experts" else {}
    tiny, model = _model(work / "tiny", {**kind, **TINY}), _model(work / name, MODELS[name])
    whole, largest = _sizes(model)
    rows = []
    for ranks in args.ranks:
        floors, peaks = _both_ways(tiny, work, ranks), _both_ways(model, work, ranks)
        for way in floors:
            peak, seconds = peaks[way]
            row = {
                **{"model": name, "MiB": whole, "largest tensor, MiB": largest},
                **{"way": way, "processes": ranks},
                "peak of a process, MiB": peak - floors[way][0],
                "bound, MiB": COPIES * largest + ROOM_MIB,
                "seconds": seconds,
            }
            say(json.dumps(row))
            rows.append(row)
    shutil.rmtree(work)
    return rows


def _model(path: Path, fields: Mapping[str, Any]) -> Path:
    """A random model of `fields`, fp32, of the families that the bundled bridges know."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = (Qwen3MoeConfig if "num_experts" in fields else Qwen3Config)(
        **{"vocab_size": 16384, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, **fields},
        tie_word_embeddings=False,
    )
    models: Any = AutoModelForCausalLM  # transformers leaves much of it untyped
    models.from_config(config, dtype=torch.float32).save_pretrained(path)
    return path


def _sizes(model: Path) -> tuple[float, float]:
    """MiB of all weights as megatron holds them, and of the largest of them."""
    sizes = json.loads(_call("sizes", model).stdout)
    return sum(sizes) / MIB, max(sizes) / MIB


def _both_ways(model: Path, work: Path, ranks: int) -> dict[str, tuple[float, float]]:
    """Way → MiB of the process with the highest peak, and seconds."""
    middle, out = work / "middle", work / "out"
    found = {
        "from Hugging Face": timed(lambda: _peak("to_dist", model, middle, ranks)),
        "to Hugging Face": timed(lambda: _peak("to_hf", middle, out, ranks)),
    }
    shutil.rmtree(middle)
    shutil.rmtree(out)
    return found


def _peak(*call: object) -> float:
    """MiB of anonymous memory of the process of a conversion that has most, at its highest."""
    command = [sys.executable, __file__, "--call", *map(str, call)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    peak, tree = 0, psutil.Process(process.pid)
    while process.poll() is None:
        pids = [process.pid, *(child.pid for child in tree.children(recursive=True))]
        peak = max(peak, *map(_anonymous, pids))
        time.sleep(POLL_S)
    if process.returncode:
        assert process.stderr is not None
        raise SystemExit(f"{call}: {process.stderr.read()[-2000:]}")
    return peak / MIB


def _anonymous(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0  # it has ended
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


def _call(*call: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, __file__, "--call", *map(str, call)]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def convert(what: str, source: Path, out: Path, ranks: int) -> None:
    """One conversion in this process and those that it starts."""
    from rlcore.api.trainer import SavedWeights
    from rlcore_cli.weights_source import of_model
    from rlcore_megatron.convert import WEIGHTS, to_dist, to_hf

    spec = of_model(source, _bridge(source))
    if what == "to_dist":
        to_dist(spec, out, lambda done, total: None, ranks)
    else:
        weights = SavedWeights(spec=spec, folder=source / WEIGHTS)
        to_hf(weights, out, lambda done, total: None, SHARD, ranks)


def sizes(source: Path) -> list[int]:
    """Bytes of each weight as megatron holds it."""
    from rlcore_cli.weights_source import of_model
    from rlcore_megatron.shares import one_rank

    with one_rank():
        from rlcore_megatron.mcore.streaming import Shape

        return list(Shape.of(of_model(source, _bridge(source))).sizes.values())


def _bridge(source: Path) -> Any:
    from rlcore.api.part import Part
    from rlcore.compose.models import find
    from rlcore.plugins.loader import load

    found = find(str(source), load().registry, "--model")
    return Part(name=found.entry.record.name, factory=found.family.factory, config=found.family.config())


if __name__ == "__main__":
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # memory goes back as soon as it is free
    if sys.argv[1:2] == ["--call"]:
        name, *rest = sys.argv[2:]
        if name == "sizes":
            print(json.dumps(sizes(Path(rest[0]))))
        else:
            convert(name, Path(rest[0]), Path(rest[1]), int(rest[2]))
    else:
        main()
