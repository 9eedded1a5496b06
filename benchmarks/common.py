"""What the benchmarks share: facts of the machine, the command, models, and where results go."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent
RESULTS = BENCHMARKS / "results"
IMAGES = BENCHMARKS.parent / "docs" / "images"
SMOLLM2 = BENCHMARKS.parent / "examples" / "arithmetic"
RLCORE = Path(sys.executable).with_name("rlcore")

POLL_S = 0.05
PHASE = re.compile(r"^\[ *([\d.]+) s\] (.*)$", re.MULTILINE)

Row = dict[str, Any]


def parser(text: str | None) -> argparse.ArgumentParser:
    """Options that every benchmark has."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--threads", type=int, default=cores(), help="threads of torch, on both sides")
    made.add_argument("--work", type=Path, default=Path("/tmp/rlcore-bench"), help="scratch folder")
    made.add_argument("--dry", action="store_true", help="print the table, store nothing")
    return made


def say(text: str) -> None:
    """A line of progress."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def cores() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


# --- the machine ---------------------------------------------------------------------------------------


def matmul_gflops(threads: int, dtype: str = "float32", *, device: str = "cpu") -> float:
    """The best rate of a square torch matmul: what this machine could do at most, in this run."""
    import torch

    torch.set_num_threads(threads)
    size = 1024 if device == "cpu" else 8192
    a = torch.randn(size, size, device=device).to(getattr(torch, dtype))

    def product() -> None:
        a @ a
        if device != "cpu":
            torch.cuda.synchronize()

    product()  # the first call makes the threads
    return 2 * size**3 / min(timed(product)[1] for _ in range(20)) / 1e9


def machine(threads: int) -> Row:
    """Facts that a number depends on. `load` is that of the last minute: above 1 others were computing."""
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "threads": threads,
        "python": platform.python_version(),
        "matmul_gflops_fp32": round(matmul_gflops(threads), 1),
        "load": round(os.getloadavg()[0], 2),
        **{name: version(name) for name in ("torch", "transformers", "megatron-core", "ray", "rlcore")},
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine()
    )


# --- numbers -------------------------------------------------------------------------------------------


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What `work` returns, and its seconds."""
    begin = time.perf_counter()
    found = work()
    return found, time.perf_counter() - begin


def pairs(
    ours: Callable[[], float], theirs: Callable[[], float], repeats: int, what: str
) -> tuple[float, float, float]:
    """Medians of `ours`, of `theirs`, and of the ratio ours / theirs within a pair.

    The two alternate, and swap places from pair to pair: noise that lasts hits both, and a drift cancels out.
    """
    found: list[tuple[float, float]] = []
    for number in range(repeats):
        first_is_ours = number % 2 == 0
        first, second = (ours(), theirs()) if first_is_ours else (theirs(), ours())
        found.append((first, second) if first_is_ours else (second, first))
        say(f"{what}: pair {number + 1}/{repeats}: {found[-1][0]:.4g} against {found[-1][1]:.4g}")
    medians = [statistics.median(values) for values in zip(*found, strict=True)]
    return medians[0], medians[1], statistics.median(a / b for a, b in found)


def verdict(met: bool) -> str:
    """How a target is marked in a table."""
    return "yes" if met else "**no**"


# --- the command ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CommandRun:
    """One finished `rlcore train`. Times are seconds from the start of the command."""

    seconds: float
    first_step_s: float
    summary: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    phases: Mapping[str, float]

    @property
    def steps(self) -> Sequence[Mapping[str, Any]]:
        """The rows of training steps."""
        return [row for row in self.rows if row["step"] > 0]


def command(
    arguments: Sequence[str], *, fails: bool = False, **known: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command that must succeed, or fail if it `fails`; its output."""
    done = subprocess.run(arguments, capture_output=True, text=True, env=_environment(), **known)
    if bool(done.returncode) != fails:
        raise SystemExit(f"{' '.join(arguments)}\nexit code {done.returncode}\n{done.stderr[-4000:]}")
    return done


def train(run_dir: Path, *flags: str) -> CommandRun:
    """`rlcore train FLAGS` to its end, through the real command line; `run_dir` is made anew."""
    shutil.rmtree(run_dir, ignore_errors=True)
    arguments = [str(RLCORE), "train", "--json", "--run-dir", str(run_dir), *flags]
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    out, err = run_dir.with_suffix(".out"), run_dir.with_suffix(".err")
    metrics, first = run_dir / "metrics.jsonl", 0.0
    begin = time.perf_counter()
    with out.open("w") as stdout, err.open("w") as stderr:
        process = subprocess.Popen(
            arguments, stdout=stdout, stderr=stderr, env=_environment(), cwd=BENCHMARKS.parent
        )
        try:
            while process.poll() is None:
                if not first and metrics.exists() and metrics.read_text().count("\n") > 1:
                    first = time.perf_counter() - begin
                time.sleep(POLL_S)
        finally:
            process.terminate()
            process.wait()
    seconds = time.perf_counter() - begin
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)}\nexit code {process.returncode}\n{err.read_text()[-4000:]}")
    return CommandRun(
        seconds=seconds,
        first_step_s=first or seconds,
        summary=json.loads(out.read_text().splitlines()[-1]),
        rows=[json.loads(line) for line in metrics.read_text().splitlines()],
        phases={
            text: float(at) for at, text in PHASE.findall(err.read_text()) if not text.startswith("step")
        },
    )


def _environment() -> dict[str, str]:
    # With it, each of the many processes would compile rlcore's modules anew.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


# --- models --------------------------------------------------------------------------------------------


def make_model(path: Path, *, layers: int, width: int, vocab: int | None = None) -> Path:
    """A random Qwen3 without an end token, so that every sample has exactly the tokens that are asked for.

    The tokenizer is the preset's; `vocab` None: as large as the tokenizer.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    from rlcore_toolkit.presets import VOCABULARY

    logging.disable_progress_bar()
    shutil.rmtree(path, ignore_errors=True)
    endless(path)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocab or len(VOCABULARY),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64 if width >= 256 else 4,
        num_key_value_heads=width // 64 if width >= 256 else 2,
        head_dim=64 if width >= 256 else width // 4,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config.update(pad_token_id=0, eos_token_id=None, bos_token_id=None)
    model.save_pretrained(path)
    return path


def endless(path: Path) -> Path:
    """The preset's tiny Qwen3 without an end token."""
    from rlcore_qwen.tiny import tiny

    tiny(path)
    return without_end(path)


def smollm2(path: Path) -> Path:
    """SmolLM2-135M-Instruct as `examples/arithmetic` makes it, without an end token."""
    if not (SMOLLM2 / "model").exists():
        command([sys.executable, str(SMOLLM2 / "make_model.py")])
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(SMOLLM2 / "model", path)
    return without_end(path)


def without_end(path: Path) -> Path:
    """The model directory `path`, changed so that nothing ends a sample."""
    (path / "chat_template.jinja").unlink(missing_ok=True)  # the end of a turn would
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        file = path / name
        kept = json.loads(file.read_text())
        kept = {key: value for key, value in kept.items() if not key.startswith("eos_token")}
        kept.pop("chat_template", None)
        file.write_text(json.dumps({**kept, "eos_token_id": None} if name == "config.json" else kept))
    return path


# --- results -------------------------------------------------------------------------------------------


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """A Markdown table; the keys of the first row are its head."""
    listed = list(rows)
    head = list(listed[0])
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(_cell(row.get(name)) for name in head) + " |" for row in listed]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "" if value is None else str(value)


def publish(name: str, facts: Row, found: Mapping[str, Any], text: str, *, dry: bool) -> None:
    """Print the table; unless `dry`, store `results/NAME.json`."""
    stamp = time.strftime("%Y-%m-%d")
    body = f"{text}\n\n*{_sentence(facts)}, {stamp}.*"
    print(f"\n{body}\n", flush=True)
    if dry:
        return
    RESULTS.mkdir(exist_ok=True)
    record = {"benchmark": name, "date": stamp, "machine": facts, **found}
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")


def stored_rows(name: str) -> list[Row]:
    """The rows that `publish` stored last; none: it has stored nothing."""
    file = RESULTS / f"{name}.json"
    rows: list[Row] = json.loads(file.read_text())["rows"] if file.exists() else []
    return rows


def _sentence(facts: Row) -> str:
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['threads']} threads, torch {facts['torch']}, "
        f"matmul {facts['matmul_gflops_fp32']} GFLOP/s (fp32), load {facts['load']} at the start"
    )
