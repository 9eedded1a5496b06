"""The pieces of `gpu_proof.py`. Each gets a scratch folder and returns figures; any error is a failure.

Figures in bytes are of the device's memory, and absent on a CPU.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FULL = {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 12, "head_dim": 128}
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 8, "initializer_range": 0.02}
SEQUENCE = 512
"""Longest prompt and longest response of a batch on a GPU."""
SIZES = ("qwen3-4b", "qwen3-1.7b", "qwen3-0.6b")
FIT_TOKENS = 2048
RESUMED_GAP = 1e-2
"""Of weights after four steps on a GPU, whose sums have no fixed order."""
WINDOW_GAP = 0.03
"""Of a value or a gradient in bf16, relative to the largest."""
LOG_PROB_GAPS = {"fp32": 2e-3, "bf16": 0.3}
"""Against transformers in fp32 on the CPU; TF32 and the order of sums are in the first."""

PLANNED_WITHIN = 0.05
"""Of what the planner says that a step saves; docs/planning.md."""

GAP = "train/kl_engine"
"""What begins so tells how far the engine's log-probs are from the trainer's."""

SHOWN = ("train/asleep_mb", "time/step_s", "time/generate_s", "time/train_s", "time/publish_s")

Figures = dict[str, Any]


class NotHereError(Exception):
    """This machine cannot show it."""


def on_gpu() -> bool:
    """Whether torch sees one."""
    import torch

    return torch.cuda.is_available()


def demo(work: Path) -> Figures:
    """The README's demo: trainer and `local` engine on the same GPU."""
    steps = () if on_gpu() else ("--steps", "2")
    return _run(work, *steps)


def colocate(work: Path) -> Figures:
    """A trainer that sleeps while the engine generates, on Ray; on a GPU with a model of 0.8 B parameters."""
    flags: tuple[str, ...] = ("--steps", "4", "--sleep", "all")
    if not on_gpu():
        return _run(work, *flags, cluster="ray")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from common import make_model

    model = make_model(work / "model", layers=16, width=1792, vocab=32768)
    prompts = work / "prompts.jsonl"
    prompts.write_text(
        "".join(f'{{"prompt": "{number:04d}=", "label": "{number:04d}"}}\n' for number in range(64))
    )
    flags += ("--data", str(prompts), "--reward", "token_match", "--max-response-tokens", "128")
    flags += ("--prompts-per-step", "16", "--group-size", "8", "--lr", "1e-6", "--eval-every", "0")
    return _run(work, *flags, "--model", str(model), cluster="ray")


def resume(work: Path) -> Figures:
    """Four steps, and two that are resumed: on a CPU the same to the last bit."""
    from safetensors.torch import load_file

    steps = ("--steps", "4", "--eval-every", "0")
    _run(work, *steps, "--export", str(work / "whole"), folder="whole-run")
    _run(work, "--steps", "2", "--eval-every", "0", folder="half-run")
    _trained(
        work / "half-run", "--resume", str(work / "half-run"), "--steps", "4", "--export", str(work / "half")
    )
    whole, half = (load_file(work / name / "model.safetensors") for name in ("whole", "half"))
    gap = max(float((whole[name].double() - half[name].double()).abs().max()) for name in whole)
    most = RESUMED_GAP if on_gpu() else 0.0
    assert gap <= most, f"the weights differ by {gap}, at most {most} asked for"
    return {"largest gap of the weights": gap}


def log_probs(work: Path) -> Figures:
    """The trainer's log-probs in fp32 and bf16, against transformers in fp32 on the CPU."""
    import torch

    from rlcore_testing.tiny import random_batch

    path, batch, found = _model(work), random_batch(8), {}
    lengths = batch.prompt_lengths + batch.response_lengths
    of_cpu, expected = _Cpu(path), []
    for tokens, prompt in zip(batch.tokens.split(lengths.tolist()), batch.prompt_lengths, strict=True):
        expected.append(of_cpu.log_probs(tokens, int(prompt)))
    for dtype, most in LOG_PROB_GAPS.items():
        mine = _role(path, dtype).forward(batch, temperature=1.0, tokens_per_rank=256)["log_probs"]
        gap = float((mine - torch.cat(expected)).abs().max())
        assert gap <= most, f"{dtype}: {gap} from the CPU's log-probs, at most {most} asked for"
        found[f"{dtype} largest gap"] = gap
    return found


def windows(work: Path) -> Figures:
    """Attention with a window and sinks over a pack in bf16, and its gradients, against fp32 on the CPU."""
    import torch

    from rlcore_megatron.mcore.layers.attention import causal
    from rlcore_megatron.mcore.packs.sequences import Sequences

    lengths, found = (300, 1, 45, 700), {}
    starts, total = torch.tensor([0, *lengths]).cumsum(0).int(), sum(lengths)
    shapes = [(total, 8, 64), (total, 2, 64), (total, 2, 64), (8,), (total, 8, 64)]
    *inputs, weights = (torch.randn(shape).bfloat16() for shape in shapes)
    for window in (128, None):
        results = []
        for device, dtype in (("cpu", torch.float32), ("cuda" if on_gpu() else "cpu", torch.bfloat16)):
            q, k, v, sinks = leaves = [x.to(device, dtype).requires_grad_() for x in inputs]
            pack = Sequences(starts.to(device), max(lengths), total)
            out = causal(q, k, v, pack, 64**-0.5, window=window, sinks=sinks)
            slopes = torch.autograd.grad((out * weights.to(out)).sum(), leaves)
            results.append([x.detach().float().cpu() for x in (out, *slopes)])
        gap = max(float((x - y).abs().max() / x.abs().max()) for x, y in zip(*results, strict=True))
        assert gap <= WINDOW_GAP, (
            f"window {window}: {gap} of the largest value, at most {WINDOW_GAP} asked for"
        )
        found[f"window {window} largest gap"] = gap
    return found


def engine(work: Path) -> Figures:
    """The `local` engine: its log-probs against the CPU's, the memory that it gives back, its speed."""
    import torch

    from rlcore import torch_dtype
    from rlcore_local.testing import Local

    path, place, found = _model(work), "cuda" if on_gpu() else "cpu", {}
    of_cpu = _Cpu(path)
    prompts = [[number + 3, *range(5, 6 + number)] for number in range(8)]
    for dtype, most in LOG_PROB_GAPS.items():
        empty = _used()
        server = Local(path, dtype=torch_dtype(dtype), device=place)
        asked = [server.sequence(str(number), ids, ignore_eos=True) for number, ids in enumerate(prompts)]
        answers, gaps = server.run(asked), []
        for number, prompt in enumerate(prompts):
            tokens = torch.tensor([*prompt, *answers[str(number)]["output_ids"]])
            expected = of_cpu.log_probs(tokens, len(prompt))
            told = [one for one, *_ in answers[str(number)]["meta_info"]["output_token_logprobs"]]
            gaps.append(float((torch.tensor(told) - expected).abs().max()))
        assert max(gaps) <= most, f"{dtype}: {max(gaps)} from the CPU's log-probs, at most {most} asked for"
        found[f"{dtype} largest gap"] = max(gaps)
        scheduler, both = server.scheduler, frozenset({"weights", "kv_cache"})
        sums = scheduler.weights.checksums()
        scheduler.release(both)
        if on_gpu():
            found[f"{dtype} bytes kept after the release"] = _used() - empty
        assert _allocated() <= 64 << 20, f"{_allocated()} bytes stay taken"
        scheduler.reclaim(both)
        assert scheduler.weights.checksums() == sums
        del server, scheduler
    return {**found, **(_speed(work) if on_gpu() else {})}


def _speed(work: Path) -> Figures:
    """Tokens a second of a Qwen3-0.6B in bf16: 128 samples of 256 tokens."""
    import torch

    from rlcore_local.testing import Local

    server = Local(_published("qwen3-0.6b", work), max_batch=128, dtype=torch.bfloat16, device="cuda")
    found = {}
    for tokens in (16, 256):  # the first warms up
        asked = [
            server.sequence(
                f"{tokens}-{number}",
                list(range(64)),
                ignore_eos=True,
                max_new_tokens=tokens,
                sampling_seed=number,
            )
            for number in range(128)
        ]
        begin = time.perf_counter()
        server.run(asked)
        found = {"tokens/s": 128 * tokens / (time.perf_counter() - begin)}
    return found


def broadcast(work: Path) -> Figures:
    """Weights by broadcast to the `local` engine (gloo); between two GPUs also by NCCL."""
    import torch

    found = _run(work, "--steps", "2", "--engine.publish", "broadcast")
    if torch.cuda.device_count() < 2:
        return {**found, "NCCL": "not shown: it takes two GPUs, as two ranks cannot share one"}
    return {**found, "NCCL, GB/s": _nccl()}


def _nccl() -> float:
    import torch.multiprocessing as mp

    from rlcore_machine.network import free_port

    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    port = free_port()
    ranks = [context.Process(target=_nccl_rank, args=(rank, port, queue)) for rank in range(2)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
        assert one.exitcode == 0, f"a rank of NCCL ended with {one.exitcode}"
    return float(queue.get())


def _nccl_rank(rank: int, port: int, queue: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    sent = torch.full((1 << 29,), 1 + rank, dtype=torch.bfloat16, device="cuda")
    dist.broadcast(sent, 0)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(5):
        dist.broadcast(sent, 0)
    torch.cuda.synchronize()
    assert float(sent[-1]) == 1.0
    if rank == 0:
        queue.put(5 * sent.nbytes / (time.perf_counter() - begin) / 1e9)
    dist.destroy_process_group()


def ipc(work: Path) -> Figures:
    """Weights by handle, CUDA IPC or shared memory on a CPU: to readers, one of which dies, and to SGLang.

    SGLang, where it is installed, is on the GPU of the trainer and takes each publication in this way.
    """
    import torch

    from rlcore.weights.checksums import checksum
    from rlcore_sglang.publish import TensorPublisher
    from rlcore_sglang.testing.payload_reader import PayloadReader

    side = 1 << (13 if on_gpu() else 9)
    place = "cuda" if on_gpu() else "cpu"
    named = {f"layer.{number}": torch.randn(side, side, device=place) for number in range(4)}
    bucket = 4 * side * side
    publisher = TensorPublisher(root=work, dtype="fp32", bucket_bytes=bucket, checks=False).feeding(1)
    empty = _allocated()
    reader, dying = PayloadReader(), PayloadReader()
    begin = time.perf_counter()
    for (name, tensor), piece in zip(named.items(), _pieces(publisher, named), strict=True):
        assert reader.take(piece.content) == {name: checksum(tensor.cpu())}, "it read other numbers"
        found = {"KB a bucket by HTTP": len(piece.content) / 1e3}
    seconds, left = time.perf_counter() - begin, _allocated() - empty
    assert left < bucket, "the memory of a publication stays"
    for piece in _pieces(publisher, named):
        dying.take(piece.content, keeps=True)
        dying.kill()
        break
    reader.kill()
    figures = {"by": "CUDA IPC" if on_gpu() else "shared memory", "s": seconds, **found}
    figures["kept for a server that died, bytes"] = _allocated() - empty
    python = _sglang_python()
    if python is None:
        return {**figures, "publication": "not shown: SGLang is not installed"}
    flags = ("--engine.python", python, "--steps", "2", "--engine.publish", "tensor")
    return {**figures, **_run(work, *flags, engine="sglang")}


def _pieces(publisher: Any, named: dict[str, Any]) -> Iterable[Any]:
    return publisher.pieces(named.items(), sends=True, tells=True)  # type: ignore[no-any-return]


def sleep(work: Path) -> Figures:
    """A trainer that sleeps frees the device's memory, and wakes with the same bits."""
    import torch

    role = _role(_model(work), "bf16", trains=True)
    _train(role, 0)
    before = {name: tensor.cpu().clone() for name, tensor in role.hf_tensors()}
    awake, found = _used(), {}
    for what in ("optimizer", "all", "all"):  # the second time has its host memory already
        begin = time.perf_counter()
        freed = role.sleep(what)
        found[f"{what}: s to sleep"] = time.perf_counter() - begin
        assert freed > 0
        if on_gpu():
            real = awake - _used()
            assert real >= 0.9 * freed - (64 << 20), f"{what}: {freed} bytes were to be free, {real} are"
            found |= {f"{what}: bytes freed": real, f"{what}: bytes said": freed}
        begin = time.perf_counter()
        role.wake()
        found[f"{what}: s to wake"] = time.perf_counter() - begin
        assert all(torch.equal(before[name], tensor.cpu()) for name, tensor in role.hf_tensors())
    _train(role, 1)
    return found


def optimizer_offload(work: Path) -> Figures:
    """Adam on the CPU, with copies beside the computing: 20 steps as without, bytes saved, time."""
    path = _model(work)
    plain, plain_s, plain_bytes = _steps(path, {})
    fields = {"optimizer_cpu_offload": True, "overlap_cpu_optimizer_d2h_h2d": True}
    hosted, hosted_s, hosted_bytes = _steps(path, fields)
    gap = max(abs(a - b) for a, b in zip(plain, hosted, strict=True))
    assert gap <= 0.02, f"losses differ by {gap}"
    return {
        "largest gap of 20 losses": gap,
        "s a step": plain_s,
        "s a step, offloaded": hosted_s,
        "bytes saved": plain_bytes - hosted_bytes,
    }


def recompute(work: Path) -> Figures:
    """Peak bytes of a step with and without recomputation, the same loss, and the planner's activations."""
    import torch

    from rlcore_megatron.fields import RECOMPUTE

    path, found, losses = _model(work), {}, []
    for name, fields in (("kept", {}), ("recomputed", RECOMPUTE)):
        role = _role(path, "bf16", fields, trains=True)
        _train(role, 0)
        if on_gpu():
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        losses.append(_train(role, 1))
        if on_gpu():
            found[f"{name}, bytes"] = torch.cuda.max_memory_allocated() - held
        del role
        _used()
    assert abs(losses[0] - losses[1]) <= 1e-2, f"losses {losses}"
    assert not on_gpu() or found["recomputed, bytes"] < found["kept, bytes"]
    saved, planned = _activations(path)
    # a fused kernel of a GPU may save less than the planner says, never more
    least = 0.0 if on_gpu() else 1 - PLANNED_WITHIN
    assert least <= saved / planned <= 1 + PLANNED_WITHIN, f"{saved} bytes are saved, {planned} are planned"
    return {**found, "losses": losses, "saved, bytes": saved, "saved, planned bytes": planned}


def _activations(path: Path) -> tuple[int, int]:
    """Bytes that a step of one micro-batch saves for its backward pass, and those that the planner says."""
    from rlcore.plugins.loader import load
    from rlcore_megatron.plan.activations import Batch, saved
    from rlcore_megatron.plan.layout import Layout
    from rlcore_testing.activations import equal_samples, saved_bytes
    from rlcore_testing.tiny import policy_loss
    from rlcore_toolkit import read_facts

    role, count, length = _role(path, "bf16", trains=True), 4, SEQUENCE // 2 if on_gpu() else 48
    batch = equal_samples(count, length, length, vocabulary=32)
    found = saved_bytes(
        role.models,
        lambda: role.train(batch, policy_loss, temperature=1.0, tokens_per_rank=2 * count * length),
    )
    facts = read_facts(str(path), load().registry)
    shape = Batch(tokens=count * (2 * length - 1), rows=count * length, bytes=2, on_cpu=not on_gpu())
    return found, saved(facts, Layout(world=1), shape, 0)


def attention(_work: Path) -> Figures:
    """Packed attention (torch's flash kernel in bf16 on a GPU), forward and gradient, against fp64."""
    import torch
    from torch.nn import functional

    from rlcore_megatron.mcore.layers.attention import causal
    from rlcore_megatron.mcore.packs.sequences import Sequences

    lengths = (700, 33, 1, 1000) if on_gpu() else (70, 3, 1, 20)
    place, dtype = ("cuda", torch.bfloat16) if on_gpu() else ("cpu", torch.float32)
    starts = torch.tensor([0, *lengths], device=place).cumsum(0).int()
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(sum(lengths), n, 64, device=place, dtype=dtype).requires_grad_() for n in (8, 2, 2)
    )
    out = causal(q, k, v, Sequences(starts, max(lengths), sum(lengths)), 64**-0.5)
    weights = torch.randn_like(out)
    mine = torch.autograd.grad((out * weights).sum(), (q, k, v))
    exact = [one.detach().double().requires_grad_() for one in (q, k, v)]
    dense = []
    for piece in zip(*(one.split(lengths) for one in exact), strict=True):
        query, key, value = (one.transpose(0, 1) for one in piece)
        alone = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        dense.append(alone.transpose(0, 1))
    wanted = torch.cat(dense)
    theirs = torch.autograd.grad((wanted * weights.double()).sum(), exact)
    found = {}
    for name, one, other in zip(("out", "dq", "dk", "dv"), (out, *mine), (wanted, *theirs), strict=True):
        found[name] = float((one.double() - other).norm() / other.norm())
        assert found[name] <= (1e-2 if on_gpu() else 1e-5), f"{name}: relative error {found[name]}"
    return found


def delta_net(_work: Path) -> Figures:
    """FLA's kernels of a gated delta net next to torch: values, gradients, times. On a CPU interpreted."""
    import torch

    if importlib.util.find_spec("fla") is None:
        raise NotHereError("fla-core is not installed")
    # the interpreter multiplies the bits of bf16
    dtypes, place, heads, sizes = [torch.float32], torch.device("cpu"), (2, 4), (16, 32)
    if on_gpu():
        dtypes, place = [torch.bfloat16, torch.float32], torch.device("cuda")
        heads, sizes = (16, 32), (128, 128)
    else:
        _interpret_triton("fla.ops.common.chunk_delta_h")
    from rlcore_megatron.mcore.layers import delta_kernels
    from rlcore_toolkit import MEASURES

    found: Figures = {}
    for dtype in dtypes:
        gaps = delta_kernels.kernel_gaps(delta_kernels.fla(), heads, sizes, dtype, place)
        far = delta_kernels.too_far(gaps, dtype)
        # rlcore takes no kernel that multiplies fp32 in TF32, as FLA's do on a GPU
        assert far is None or (on_gpu() and dtype is torch.float32), f"{dtype}: {far}"
        found |= {
            f"{dtype} {name} {measure}": gap
            for name, measured in gaps.items()
            for measure, gap in zip(MEASURES, measured, strict=True)
        }
    if on_gpu():
        for name, kernels in (("FLA", delta_kernels.fla()), ("torch", delta_kernels.TORCH)):
            found[f"{name}, s"] = _seconds_of_delta_net(kernels)
    return found


def layers(_work: Path) -> Figures:
    """How many layers of three families liger computes, and times of their norms. On a CPU interpreted."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if importlib.util.find_spec("liger_kernel") is None:
        raise NotHereError("liger-kernel is not installed")
    dtype, place = (
        (torch.bfloat16, torch.device("cuda")) if on_gpu() else (torch.float32, torch.device("cpu"))
    )
    if not on_gpu():
        _interpret_triton("liger_kernel.ops.rms_norm")
    from rlcore_toolkit import liger_kernels, use_kernels

    width, tokens = (4096, 16384) if on_gpu() else (64, 16)
    sizes = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 1,
        "num_local_experts": 2,
    }
    found: Figures = {}
    for family, chosen in {"qwen3": 6, "gemma3_text": 7, "gpt_oss": 3}.items():
        config = AutoConfig.for_model(family, **HEADS, **sizes, head_dim=64, vocab_size=64, pad_token_id=None)
        model = AutoModelForCausalLM.from_config(config).to(place, dtype)
        states = torch.randn(tokens, width, device=place, dtype=dtype, requires_grad=True)
        times = [_seconds_of_norm(model.model.norm, states)]
        assert use_kernels(model, dtype, liger_kernels()) == chosen, f"{family} has other layers by kernels"
        times.append(_seconds_of_norm(model.model.norm, states))
        if on_gpu():
            found |= {f"{family} norm, transformers, s": times[0], f"{family} norm, liger, s": times[1]}
    return found


def _seconds_of_norm(norm: Any, states: Any) -> float:
    """Of its forward and backward."""
    import torch

    times = []
    for _ in range(5 if on_gpu() else 1):
        start = time.perf_counter()
        norm(states).square().sum().backward()
        if on_gpu():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def _interpret_triton(name: str) -> None:
    """Let triton run the kernels of the module `name` by its interpreter, untimed.

    There an index of a loop lacks `to`, its ends are tensors, and CUDA's reciprocal root is missing.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    tuner: Any = importlib.import_module("triton.runtime.autotuner")

    class Index(int):
        def to(self, _dtype: Any) -> Index:
            return self

    def number(end: Any) -> int:
        return end if isinstance(end, int) else int(end.handle.data.item())

    tuner.Autotuner._bench = lambda *_, **__: [0.0, 0.0, 0.0]
    module: Any = importlib.import_module(name)
    module.range = lambda *ends: map(Index, range(*map(number, ends)))
    module.min = lambda *ends: min(map(number, ends))
    module.rsqrt = lambda x: 1 / module.tl.sqrt(x)


def _seconds_of_delta_net(kernels: Any) -> float:
    """Forward and backward of a pack of 32,768 tokens with the heads of Qwen3-Next, in bf16."""
    import torch
    from torch.nn.functional import normalize

    from rlcore_megatron.mcore.packs.chunks import Chunks

    total, length = 32768, 2048
    runs = [(start, length, -1) for start in range(0, total, length)]
    chunks = Chunks(runs, total, device=torch.device("cuda"))

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    q, k, v = (
        normalize(noise(total, 16, 128), dim=-1),
        normalize(noise(total, 16, 128), dim=-1),
        noise(total, 32, 128),
    )
    x, weight = noise(total, 8192), noise(8192, 4)
    for leaf in (q, k, v, x, weight):
        leaf.requires_grad_()
    decay, beta = -torch.rand(total, 32, 1, device="cuda"), torch.rand(total, 32, device="cuda")
    for _ in range(2):  # the first compiles and tunes
        torch.cuda.synchronize()
        begin = time.perf_counter()
        kernels.recur(q, k, v, decay, beta, chunks).sum().backward()
        kernels.convolve(x, weight, chunks).sum().backward()
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def fit(work: Path) -> Figures:
    """The largest Qwen3 that the planner puts on one GPU takes two steps; its peak and the planner's.

    On a CPU the planner is asked for a card of 80 GB, and a small model takes the steps with its layout.
    """
    import torch

    from rlcore_megatron.fields import RECOMPUTE

    gigabytes = torch.cuda.get_device_properties(0).total_memory / 1e9 if on_gpu() else 80.0
    for name in SIZES:
        asked = ("--model", name, "--gpus", "1", "--gpu-memory", f"{gigabytes:.1f}")
        plan = _command("plan", *asked, "--tokens-per-rank", str(FIT_TOKENS), "--json")
        layouts = [one for one in json.loads(plan.stdout or "{}").get("layouts", ()) if one["fits"]]
        kept = [one for one in layouts if not one["optimizer_on_host"]]
        if kept:
            break
    else:
        raise AssertionError(f"the planner finds none of {SIZES} for {gigabytes:.1f} GB")
    recomputes, planned = kept[0]["layout"]["recompute"], kept[0]["memory"]["total"]
    role = _role(
        _published(name, work) if on_gpu() else _model(work),
        "bf16",
        RECOMPUTE if recomputes else {},
        trains=True,
    )
    if on_gpu():
        torch.cuda.reset_peak_memory_stats()
    losses = [_train(role, seed, tokens=FIT_TOKENS) for seed in (0, 1)]
    found = {"model": name, "planned, bytes": planned, "losses": losses}
    if not on_gpu():
        return found
    peak = torch.cuda.max_memory_allocated()
    beside = _used() - torch.cuda.memory_reserved()
    return {**found, "peak, bytes": peak, "ratio": peak / planned, "bytes beside torch's": beside}


def trl(work: Path) -> Figures:
    """A step beside TRL's GRPOTrainer on the same machine (benchmarks/vs_trl.py); on a CPU, a tiny one."""
    if importlib.util.find_spec("trl") is None:
        raise NotHereError("TRL is not installed")
    script = str(ROOT / "benchmarks" / "vs_trl.py")
    case = ("--device", "cuda", "--threads", "4") if on_gpu() else ("--cases", "tiny", "--threads", "2")
    done = _call(
        *(sys.executable, script, "--dry", *case, "--rounds", "1", "--steps", "5", "--warmup", "2"),
        *("--trl-venv", sys.prefix, "--work", str(work)),
    )
    return {"table": _table(done)}


def _table(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of the table that a benchmark prints, with at least one row of each side."""
    assert not done.returncode, f"exit code {done.returncode}: {done.stderr[-3000:]}"
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    sides = [line.split("|")[2].split(",")[0].strip() for line in lines[2:]]
    assert {*sides} == {"TRL", "rlcore"}, f"no table of both sides: {done.stdout[-3000:]}"
    return lines


def sglang(work: Path) -> Figures:
    """The demo with SGLang, and how far its log-probs are from the trainer's."""
    python = _sglang_python()
    if python is None:
        raise NotHereError("SGLang is not installed")
    steps = "20" if on_gpu() else "2"
    return _run(work, "--engine.python", python, "--steps", steps, engine="sglang")


# --- what they share -----------------------------------------------------------------------------------


def _sglang_python() -> str | None:
    """The interpreter that has SGLang; None: there is none."""
    python = os.environ.get("RLCORE_SGLANG_PYTHON", sys.executable)
    # found, not imported: on a CPU it imports only beside the stand-ins that the engine's launcher brings
    found = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"
    return None if subprocess.run([python, "-c", found]).returncode else python


def _model(work: Path) -> Path:
    from rlcore_testing.tiny import make_qwen3

    sizes = {**FULL, **HEADS, "max_position_embeddings": 2048} if on_gpu() else {}
    return make_qwen3(work / "model", **sizes)


def _published(name: str, work: Path) -> Path:
    """A published size with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    file = next(Path(str(files("rlcore_qwen"))).rglob(f"{name}.json"))
    folder = work / name
    folder.mkdir(exist_ok=True)
    shutil.copy(file, folder / "config.json")
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    del model
    _used()
    return folder


class _Cpu:
    """The model of transformers in fp32 on the CPU."""

    def __init__(self, path: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    def log_probs(self, tokens: Any, prompt: int) -> Any:
        """[response] of `tokens` [prompt + response]."""
        import torch

        with torch.no_grad():
            logits = self._model(tokens[None]).logits[0, prompt - 1 : -1].log_softmax(-1)
        return logits.gather(1, tokens[prompt:, None])[:, 0]


def _role(path: Path, dtype: str, fields: dict[str, Any] | None = None, *, trains: bool = False) -> Any:
    from torch import distributed

    from rlcore.api.optimizer import OptimizerSettings
    from rlcore.api.part import ModelSpec, Part
    from rlcore_machine.network import free_port
    from rlcore_megatron.mcore import parallel
    from rlcore_megatron.mcore.role.role import Role

    if not distributed.is_initialized():
        parallel.start(0, 1, "127.0.0.1", free_port())
    part = Part(name="qwen", factory="rlcore_qwen.bridge:QwenBridge")
    spec = ModelSpec(path=str(path), bridge=part, fields=fields or {}, dtype=dtype)
    return Role(spec, OptimizerSettings(lr=1e-5, clip_grad=1.0) if trains else None)


def _train(role: Any, seed: int, *, tokens: int | None = None) -> float:
    from rlcore_testing.tiny import policy_loss, random_batch

    longest = min(SEQUENCE, tokens // 4 if tokens else SEQUENCE) if on_gpu() else 12
    batch = random_batch(8 if on_gpu() else 4, seed, longest=longest)
    step = role.train(batch, policy_loss, temperature=1.0, tokens_per_rank=tokens or 4 * longest)
    assert step.loss == step.loss, "the loss is not a number"
    return float(step.loss)


def _steps(path: Path, fields: dict[str, Any]) -> tuple[list[float], float, int]:
    """Losses of 20 steps, seconds of one, and the device's bytes after them."""
    empty = _used()
    role = _role(path, "bf16", fields, trains=True)
    losses = [_train(role, 0)]
    begin = time.perf_counter()
    losses += [_train(role, seed) for seed in range(1, 20)]
    seconds = (time.perf_counter() - begin) / 19
    held = _used() - empty
    del role
    _used()
    return losses, seconds, held


def _used() -> int:
    """Bytes of the device that are not free, without what the allocator keeps for later. 0 on a CPU."""
    import torch

    gc.collect()
    if not on_gpu():
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free


def _allocated() -> int:
    """Bytes of the device that tensors of this process take. 0 on a CPU."""
    import torch

    gc.collect()
    return torch.cuda.memory_allocated() if on_gpu() else 0


def _run(
    work: Path, *flags: str, engine: str = "local", cluster: str = "processes", folder: str = "run"
) -> Figures:
    """Figures of `rlcore train` with the preset Qwen3. On a GPU the default engine may be SGLang."""
    run = work / folder
    shutil.rmtree(run, ignore_errors=True)
    parts = ["--algo", "grpo", "--engine", engine, "--cluster", cluster, "--run-dir", str(run)]
    if "--model" not in flags:
        parts += ["--model", "qwen3"]
    return _trained(run, *parts, *flags)


def _trained(run: Path, *flags: str) -> Figures:
    """Figures of `rlcore train FLAGS`, whose folder is `run`."""
    begin = time.perf_counter()
    done = _command("train", *flags)
    seconds = time.perf_counter() - begin
    assert not done.returncode, f"exit code {done.returncode}: {done.stderr[-3000:]}"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rewards = _column(rows, "rollout/reward_mean")
    found = {"steps": rows[-1]["step"], "s": seconds, "rewards": rewards[:: max(1, len(rewards) // 20)]}
    gaps = {key: _column(rows, key)[-1] for key in rows[-1] if key.startswith(GAP)}
    return {**found, **gaps, **{key: rows[-1][key] for key in SHOWN if key in rows[-1]}}


def _column(rows: Iterable[dict[str, Any]], key: str) -> list[float]:
    return [row[key] for row in rows if key in row]


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return _call(str(Path(sys.executable).with_name("rlcore")), *arguments)


def _call(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})


PIECES: dict[str, Callable[[Path], Figures]] = {
    piece.__name__: piece
    for piece in (
        *(
            demo,
            colocate,
            resume,
            log_probs,
            windows,
            engine,
            broadcast,
            ipc,
            sleep,
            optimizer_offload,
            recompute,
        ),
        *(attention, delta_net, layers, fit, trl, sglang),
    )
}
