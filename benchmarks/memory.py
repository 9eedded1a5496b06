"""Peak memory of log-probs, entropy and loss from logits: one pass in chunks, against plain torch.

Each measurement is a process of its own: its high-water mark with the pass, less that with the logits and
their gradient alone, which no way of computing can do without. Every large tensor is given back to the system
as soon as it is freed, so that the mark is of what lives at once.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

from common import Row, machine, parser, publish, say, table, verdict

MIB = 1 << 20
WAYS = ("torch", "chunk 16", "chunk 256", "default")
MOST_MIB = 96.0
"""What the pass may need at any size: a few chunks of 16 MiB, and what an allocator keeps back."""


def main() -> None:
    """Every size and way, one after the other."""
    options = parser(__doc__)
    options.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096, 8192], help="rows of logits")
    options.add_argument("--vocab", type=int, nargs="+", default=[8192, 32768], help="columns of logits")
    args = options.parse_args()
    facts = machine(args.threads)
    rows = [_row(tokens, vocab) for vocab in args.vocab for tokens in args.tokens]
    most = max(row["default"] for row in rows)
    text = (
        f"{table(rows)}\n\nMiB beside the logits and their gradient. With the default chunk at most "
        f"{most:.0f} (asked for: {MOST_MIB:.0f} at any size): {verdict(most <= MOST_MIB)}."
    )
    publish("memory", facts, {"rows": rows}, text, dry=args.dry)


def _row(tokens: int, vocab: int) -> Row:
    floor = _measured("none", tokens, vocab)
    found = {way: _measured(way, tokens, vocab) - floor for way in WAYS}
    say(f"{tokens} x {vocab}: {found}")
    logits = 4 * tokens * vocab / MIB
    return {"tokens": tokens, "vocabulary": vocab, "logits, MiB": logits, **found}


def _measured(way: str, tokens: int, vocab: int) -> float:
    command = [sys.executable, __file__, "--measure", json.dumps([way, tokens, vocab])]
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"{way}, {tokens} x {vocab}: {done.stderr[-2000:]}")
    return float(done.stdout)


def measure(way: str, tokens: int, vocab: int) -> float:
    """MiB of resident memory at the peak of one forward and one backward pass in this process."""
    import torch

    from rlcore_megatron.mcore.logprobs import vocab_parallel_log_probs

    torch.set_num_threads(1)
    torch.manual_seed(0)
    logits = torch.empty(tokens, vocab).uniform_().requires_grad_()
    targets = torch.randint(vocab, (tokens,))
    if way == "none":
        logits.grad = torch.ones_like(logits)
    elif way == "torch":
        log_p = torch.log_softmax(logits, -1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        (-log_p.gather(1, targets[:, None])[:, 0] - 0.01 * entropy).sum().backward()
    else:
        chunk = None if way == "default" else int(way.removeprefix("chunk "))
        log_probs, entropies = vocab_parallel_log_probs(
            logits, targets, entropy=True, entropy_grad=True, chunk=chunk
        )
        assert entropies is not None
        (-log_probs - 0.01 * entropies).sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(measure(*json.loads(sys.argv[2])))
    else:
        main()
