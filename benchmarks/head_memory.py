"""Peak memory and seconds of the output layer with log-probs, entropy, gradients: whole logits, and chunks.

From hidden states to the gradients of these and of the output matrix, with the two ways between which
`rlcore_megatron.mcore.rows` chooses by size. Each measurement is a process of its own: its high-water mark,
less that with hidden states, matrix and both gradients alone. Every large tensor is given back to the system
as soon as it is freed, so that the mark is of what lives at once.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time

from common import Row, machine, parser, publish, say, table, verdict

WAYS = ("whole", "chunks")
VOCABULARY = 32768
WIDTH = 256
MOST_GROWTH = 1.1
"""Of the memory of the chunks, from the fewest tokens to the most."""


def main() -> None:
    """Every size and way, one after the other."""
    options = parser(__doc__)
    options.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048, 4096, 8192], help="rows")
    args = options.parse_args()
    facts = machine(args.threads)
    rows = [_row(tokens, args.threads) for tokens in args.tokens]
    growth = rows[-1]["chunks, MiB"] / rows[0]["chunks, MiB"]
    text = (
        f"{table(rows)}\n\nFrom {args.tokens[0]} to {args.tokens[-1]} tokens the memory of the chunks grows "
        f"by the factor {growth:.2f} (asked for: at most {MOST_GROWTH}): {verdict(growth <= MOST_GROWTH)}."
    )
    publish("head_memory", facts, {"rows": rows}, text, dry=args.dry)


def _row(tokens: int, threads: int) -> Row:
    floor, _ = _measured("none", tokens, threads)
    found = {way: _measured(way, tokens, threads) for way in WAYS}
    say(f"{tokens} tokens: {floor:.0f} MiB, {found}")
    memory = {f"{way}, MiB": mib - floor for way, (mib, _) in found.items()}
    return {"tokens": tokens, **memory, **{f"{way}, s": seconds for way, (_, seconds) in found.items()}}


def _measured(way: str, tokens: int, threads: int) -> tuple[float, float]:
    command = [sys.executable, __file__, "--measure", json.dumps([way, tokens, threads])]
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"{way}, {tokens} tokens: {done.stderr[-2000:]}")
    mib, seconds = json.loads(done.stdout)
    return mib, seconds


def measure(way: str, tokens: int, threads: int) -> tuple[float, float]:
    """MiB of resident memory at the peak of one forward and backward pass in this process; its seconds."""
    import torch

    from rlcore_megatron.mcore.logprobs import HiddenRows, vocab_parallel_log_probs
    from rlcore_toolkit import kernel_linear

    torch.set_num_threads(threads)
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, WIDTH, generator=draw).requires_grad_()
    matrix = torch.randn(VOCABULARY, WIDTH, generator=draw).requires_grad_()
    targets = torch.randint(VOCABULARY, (tokens,), generator=draw)
    begin = time.perf_counter()
    if way == "none":
        hidden.grad, matrix.grad = torch.ones_like(hidden), torch.ones_like(matrix)
    else:
        whole = way == "whole"
        logits = kernel_linear(hidden, matrix) if whole else HiddenRows(hidden=hidden, matrix=matrix)
        log_probs, entropies = vocab_parallel_log_probs(logits, targets, entropy=True, entropy_grad=True)
        assert entropies is not None
        (-log_probs - 0.01 * entropies).sum().backward()
    seconds = time.perf_counter() - begin
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, seconds


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(*json.loads(sys.argv[2]))))
    else:
        main()
