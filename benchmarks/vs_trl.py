"""A whole GRPO step against TRL's GRPOTrainer: same model, prompts, samples, tokens, dtype and threads."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from common import (
    SMOLLM2,
    Row,
    command,
    endless,
    machine,
    make_model,
    matmul_gflops,
    parser,
    publish,
    say,
    smollm2,
    stored_rows,
    table,
    train,
    verdict,
)

TRL = "trl==1.16.0"
HERE = Path(__file__).resolve().parent
SETUP = HERE.parent / "scripts" / "setup_venv.py"
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
LR = 1e-4
WayT = TypeVar("WayT")


@dataclass(frozen=True)
class Own:
    """The trainer, its ranks and the engines, which all share the threads.

    `engine_threads`: of each engine (None: its share); a tiny model decodes faster with one. `at_once`: how
    many samples an engine decodes together (None: all that it gets). With fewer, the driver works meanwhile.
    `cluster`: what starts the processes.
    """

    ranks: int = 1
    engines: int = 1
    engine_threads: int | None = None
    at_once: int | None = None
    cluster: str = "ray"
    trainer: str = "megatron"

    def __str__(self) -> str:
        """In a table."""
        return _joined(
            self.trainer if self.trainer != "megatron" else "",
            f"{self.ranks} ranks" if self.ranks > 1 else "",
            f"{self.engines} engines" if self.engines > 1 else "",
            f"{self.at_once} samples at once" if self.at_once else "",
            f"--cluster {self.cluster}" if self.cluster != "ray" else "",
        )


@dataclass(frozen=True)
class Way:
    """How many micro-batches TRL makes of its batch; its data-parallel processes, which share the threads."""

    accumulate: int = 1
    processes: int = 1

    def __str__(self) -> str:
        """In a table."""
        return _joined(
            f"{self.processes} processes" if self.processes > 1 else "",
            f"{self.accumulate} micro-batches" if self.accumulate > 1 else "",
        )


def _joined(*texts: str) -> str:
    """`TRL, 2 processes, …` without the first word."""
    return "".join(f", {text}" for text in texts if text)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Who does what, and how the time of rlcore's trainers may compare with TRL's (`most`, by trainer).

    `ways`: how TRL may do it; its best counts. `own`: how rlcore may; the best of each trainer counts.
    `layers` 0: SmolLM2-135M-Instruct, and the questions of its example. `lora`: the rank of an adapter on all
    linear layers; 0: none. The first `warmup` of the `steps` do not count. All run in alternation, `rounds`
    times.
    """

    name: str
    layers: int
    width: int
    prompts: int
    group: int
    tokens: int
    dtype: str
    most: Mapping[str, float]
    own: tuple[Own, ...]
    ways: tuple[Way, ...] = (Way(),)
    lora: int = 0
    steps: int = 6
    warmup: int = 2
    rounds: int = 2

    @property
    def samples(self) -> int:
        """In a step."""
        return self.prompts * self.group


LARGE = {
    "layers": 8,
    "width": 256,
    "prompts": 16,
    "group": 8,
    "tokens": 128,
    "ways": (Way(), Way(accumulate=4), Way(processes=2)),
    "own": (
        Own(),
        Own(ranks=2, engines=2),
        Own(ranks=2, engines=2, cluster="processes"),
        Own(cluster="processes", trainer="fsdp"),
        Own(ranks=2, engines=2, cluster="processes", trainer="fsdp"),
    ),
}
REAL = {
    "layers": 0,
    "width": 0,
    "prompts": 8,
    "group": 8,
    "tokens": 24,
    "dtype": "fp32",
    "most": {"megatron": 0.45, "fsdp": 0.6},
    "own": (Own(cluster="processes"), Own(cluster="processes", trainer="fsdp")),
    "steps": 4,
    "warmup": 1,
}
CASES = (
    Case(
        name="tiny",
        layers=2,
        width=64,
        prompts=32,
        group=16,
        tokens=5,
        dtype="fp32",
        most={"megatron": 1.0},
        steps=40,
        warmup=10,
        rounds=5,
        ways=(Way(), Way(processes=2)),
        own=(Own(ranks=2, engines=2), Own(ranks=2, engines=2, cluster="processes")),
    ),
    Case(name="large-fp32", dtype="fp32", most={"megatron": 0.85, "fsdp": 0.8}, **LARGE),  # type: ignore[arg-type]  # a table of mixed values
    Case(name="large-bf16", dtype="bf16", most={"megatron": 1.0, "fsdp": 1.0}, **LARGE),  # type: ignore[arg-type]  # a table of mixed values
    Case(name="smollm2", **REAL),  # type: ignore[arg-type]  # the same
    Case(name="smollm2-lora", lora=16, **REAL),  # type: ignore[arg-type]  # the same
)


GPU_CASES = (
    Case(
        name="gpu-bf16",
        layers=12,
        width=1024,
        prompts=16,
        group=8,
        tokens=128,
        dtype="bf16",
        most={"megatron": 1.0},
        own=(Own(cluster="processes"),),
    ),
)
"""Instead of `CASES`, with `--device cuda`."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Median seconds of a step after the warm-up, of its generation, and of its training."""

    step: float
    generate: float
    train: float


def main() -> None:
    """Every case, TRL and rlcore one after the other, in several rounds."""
    options = parser(__doc__)
    options.add_argument("--trl-venv", type=Path, default=Path(".venv-trl"), help="made if it is not there")
    options.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="of both sides; cuda only prints its table"
    )
    options.add_argument("--cases", nargs="+", help="which ones (default: all of the device)")
    options.add_argument("--steps", type=int, help="steps of a run (default: the case's, as the next two)")
    options.add_argument("--warmup", type=int, help="first steps that do not count")
    options.add_argument("--rounds", type=int, help="runs of each side, in alternation")
    args = options.parse_args()
    on_gpu = args.device == "cuda"
    if not on_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # else trainers would take one
    facts = machine(args.threads) | {
        **{
            f"matmul_gflops_{name}": round(matmul_gflops(args.threads, kind, device=args.device), 1)
            for name, kind in DTYPES.items()
        },
        "trl": TRL.partition("==")[2],
    }
    python = trl_python(args.trl_venv)
    rows: list[Row] = []
    for case in GPU_CASES if on_gpu else CASES:
        is_asked = not args.cases or case.name in args.cases
        if is_asked:
            rows += compare(case, args, python, facts)
        elif not args.dry:
            rows += _earlier(case)
    publish("vs_trl", facts, {"rows": rows}, table(rows), dry=args.dry or on_gpu)


def _earlier(case: Case) -> list[Row]:
    """The stored rows of a case that is not measured now."""
    return [row for row in stored_rows("vs_trl") if str(row["case"]).startswith(f"{case.name}:")]


def trl_python(venv: Path) -> Path:
    """The interpreter of an environment with TRL, and with the torch that fits the machine."""
    python = venv / "bin" / "python"
    if venv.absolute() == Path(sys.prefix):
        return python.absolute()  # TRL is where this runs
    if not (venv / ".ready").exists():
        say(f"installing {TRL} into {venv}")
        command([sys.executable, str(SETUP), str(venv.absolute()), TRL])
        (venv / ".ready").touch()
    return python.absolute()


def compare(case: Case, args: argparse.Namespace, python: Path, facts: Row) -> list[Row]:
    """The rows of the table: TRL's, and one of each of rlcore's trainers."""
    work = args.work / case.name
    model = _model(case, work / "model")
    prompts = _prompts(work / "prompts.jsonl", case)
    lengths = _lengths(prompts, model)
    steps = args.steps or case.steps
    warmup = min(args.warmup or case.warmup, steps - 1)
    theirs: dict[Way, list[Times]] = {way: [] for way in case.ways}
    ours: dict[Own, list[Times]] = {own: [] for own in case.own}
    for number in range(args.rounds or case.rounds):
        for way, found in theirs.items():
            job = _job(case, work, model, prompts, args, steps=steps, way=way)
            found.append(_trl(python, job, warmup))
            say(f"{case.name}: TRL{way}: {found[-1].step:.3f} s a step")
        for own, found in ours.items():
            folder = work / f"run-{own.trainer}-{own.ranks}-{own.engines}-{own.cluster}-{number}"
            flags = {"engine.device": args.device, "max-prompt-tokens": max(lengths)}
            found.append(_rlcore(case, folder, model, prompts, steps, warmup, args.threads, own, flags))
            say(f"{case.name}: rlcore{own}: {found[-1].step:.3f} s a step")
    best_way, best = _best(theirs)
    peak = facts[f"matmul_gflops_{case.dtype}"] * 1e9
    prompt = statistics.mean(lengths)
    forward = forward_flops(case, model, prompt)
    shown = (
        f"{case.name}: {case.prompts} prompts of {prompt:.0f} tokens by {case.group} samples of "
        f"{case.tokens} tokens, {case.dtype}"
    )
    rows = [
        _row(shown, f"TRL{best_way}", case, best, forward / peak)
        | {"time ÷ TRL's": 1.0, "target": "", "met": ""}
    ]
    for trainer, most in case.most.items():
        best_own, mine = _best({own: found for own, found in ours.items() if own.trainer == trainer})
        ratio = mine.step / best.step
        rows.append(
            _row(shown, f"rlcore{best_own}", case, mine, forward / peak)
            | {"time ÷ TRL's": ratio, "target": f"≤ {most:.2f}", "met": verdict(ratio <= most)}
        )
    return rows


def _model(case: Case, path: Path) -> Path:
    if not case.layers:
        return smollm2(path)
    if case.width == 64:
        path.parent.mkdir(parents=True, exist_ok=True)
        return endless(path)
    return make_model(path, layers=case.layers, width=case.width)


def _prompts(path: Path, case: Case) -> Path:
    if case.layers:
        texts = [f"{number * 7919 % 10000:04d}" for number in range(case.prompts * 8)]
        rows = [{"prompt": f"{text}=", "label": text} for text in texts]
    else:
        rows = _questions()[: case.prompts * 8]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _questions() -> list[Row]:
    """Those of the example in the model's chat template, which `without_end` takes from the model."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(SMOLLM2 / "model")
    rows = [json.loads(line) for line in (SMOLLM2 / "train.jsonl").read_text().splitlines()]
    chats = [row["prompt"] for row in rows]
    texts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    return [{"prompt": text, "label": row["label"]} for text, row in zip(texts, rows, strict=True)]


def _lengths(prompts: Path, model: Path) -> list[int]:
    """The tokens of each prompt."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = [json.loads(line)["prompt"] for line in prompts.read_text().splitlines()]
    return [len(ids) for ids in tokenizer(texts)["input_ids"]]


def _job(
    case: Case, work: Path, model: Path, prompts: Path, args: argparse.Namespace, *, steps: int, way: Way
) -> Row:
    return {
        "device": args.device,
        "model": str(model),
        "prompts": str(prompts),
        "work": str(work / "trl"),
        "steps": steps,
        "threads": args.threads // way.processes,
        "processes": way.processes,
        "accumulate": way.accumulate,
        "dtype": DTYPES[case.dtype],
        "prompts_per_step": case.prompts,
        "group_size": case.group,
        "tokens": case.tokens,
        "lr": LR,
        "lora": case.lora,
    }


def _trl(python: Path, job: Row, warmup: int) -> Times:
    spread = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job["processes"]))
    several = spread if job["processes"] > 1 else ()
    done = command([str(python), *several, str(HERE / "trl_side.py"), json.dumps(job)])
    answer = json.loads(done.stdout.splitlines()[-1])
    steps, generate = answer["steps"][warmup:], answer["generate"][warmup:]
    rest = [step - part for step, part in zip(steps, generate, strict=True)]
    return _times(steps, generate, rest)


def _rlcore(
    case: Case,
    run_dir: Path,
    model: Path,
    prompts: Path,
    steps: int,
    warmup: int,
    threads: int,
    own: Own,
    device_flags: Mapping[str, object],
) -> Times:
    flags = {
        "algo": "grpo",
        "model": model,
        "data": prompts,
        "reward": "token_match",
        "steps": steps,
        "prompts-per-step": case.prompts,
        "group-size": case.group,
        "max-response-tokens": case.tokens,
        "lr": LR,
        "dtype": case.dtype,
        "engine": "local",
        "trainer": own.trainer,
        "lora.rank": case.lora,
        "eval-every": 0,
        "ranks": own.ranks,
        "engines": own.engines,
        "cluster": own.cluster,
        "threads": threads // own.ranks,
        "engine.threads": own.engine_threads or threads // own.engines,
        "engine.max-batch": own.at_once or case.samples // own.engines,
        **device_flags,
    }
    run = train(run_dir, *(text for name, value in flags.items() for text in (f"--{name}", str(value))))
    for row in run.steps:
        assert row["rollout/response_tokens"] == case.samples * case.tokens, "every sample has all its tokens"
    rows = run.steps[warmup:]
    return _times(*([row[f"time/{name}_s"] for row in rows] for name in ("step", "generate", "train")))


def _times(step: Sequence[float], generate: Sequence[float], train: Sequence[float]) -> Times:
    median = statistics.median
    return Times(step=median(step), generate=median(generate), train=median(train))


def _median(found: Sequence[Times]) -> Times:
    return _times(*([vars(times)[name] for times in found] for name in ("step", "generate", "train")))


def _best(found: Mapping[WayT, Sequence[Times]]) -> tuple[WayT, Times]:
    """The fastest way, by the medians of its rounds."""
    return min(((way, _median(times)) for way, times in found.items()), key=lambda one: one[1].step)


def _row(shown: str, who: str, case: Case, times: Times, forward: float) -> Row:
    """`forward`: seconds of a forward pass at the machine's best rate."""
    passes = 2 if case.lora else 3
    return {
        "case": shown,
        "trainer": who,
        "s a step": times.step,
        "generate, s": times.generate,
        "rest, s": times.step - times.generate,
        "generate, % of matmul peak": 100 * forward / times.generate,
        "rest, % of matmul peak": 100 * passes * forward / (times.step - times.generate),
        "tokens/s": case.samples * case.tokens / times.step,
    }


def forward_flops(case: Case, model: Path, prompt: float) -> float:
    """Multiplications and additions, counted as two, of one forward pass over all samples with their prompts.

    `prompt`: its tokens, counted for each sample, although rlcore computes them once for a group.

    Generation needs one such pass. An optimizer step needs three, because its backward pass is twice the
    forward one; of an adapter two, because the frozen weights have no gradients.
    """
    from safetensors import safe_open
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model)
    with safe_open(model / "model.safetensors", framework="pt") as opened:
        shapes = {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118 - no mapping
    # An embedding is a look-up; one that is tied to the output layer is multiplied there.
    counted = [shape for name, shape in shapes.items() if config.tie_word_embeddings or "embed" not in name]
    weights = sum(shape[0] * shape[1] for shape in counted if len(shape) == 2)
    length = prompt + case.tokens
    # scores and weighted sums, over half the length on average
    attention = config.num_hidden_layers * config.hidden_size * length
    return float(2 * case.samples * length * (weights + attention))


if __name__ == "__main__":
    main()
