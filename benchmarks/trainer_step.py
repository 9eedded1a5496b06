"""Seconds of one optimizer step: rlcore's `Role` on megatron-core against transformers with torch's AdamW."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from common import Row, machine, make_model, pairs, parser, publish, table, timed, verdict
from transformers import AutoModelForCausalLM

from rlcore.api.batch import TrainBatch
from rlcore.api.optimizer import OptimizerSettings
from rlcore.api.part import ModelSpec, Part
from rlcore.api.trainer import LossResult, TokenOutputs
from rlcore_machine import keep_memory
from rlcore_machine.network import free_port
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role

VOCAB = 512
SAMPLES, TOKENS = 8, 256
MOST = 1.05
SETTINGS = OptimizerSettings(lr=1e-4, weight_decay=0.01, clip_grad=1.0)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Ours:
    """rlcore."""

    def __init__(self, path: Path, dtype: str, tokens: torch.Tensor) -> None:
        part = Part(name="qwen", factory="rlcore_qwen.bridge:QwenBridge")
        self.role = Role(ModelSpec(path=str(path), bridge=part, dtype=dtype), SETTINGS)
        rows, width = tokens.shape
        self.batch = TrainBatch(
            tokens=tokens.flatten(),
            prompt_lengths=torch.ones(rows, dtype=torch.int64),
            response_lengths=torch.full((rows,), width - 1),
        )

    def step(self) -> float:
        """Seconds of a step."""
        result, seconds = timed(
            lambda: self.role.train(self.batch, _loss, temperature=1.0, tokens_per_rank=SAMPLES * TOKENS)
        )
        self.loss = result.loss
        return seconds


def _loss(outputs: TokenOutputs, batch: TrainBatch) -> LossResult:
    return LossResult(total=-outputs.log_probs.sum() / (SAMPLES * (TOKENS - 1)))


class Theirs:
    """What one would write by hand: a batch without padding, the same loss, clipping, the fused AdamW."""

    def __init__(self, path: Path, dtype: str, tokens: torch.Tensor) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=DTYPES[dtype])
        self.model.train()
        self.tokens = tokens
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=SETTINGS.lr,
            betas=(SETTINGS.adam_beta1, SETTINGS.adam_beta2),
            weight_decay=SETTINGS.weight_decay,
            fused=True,
        )

    def step(self) -> float:
        """Seconds of a step."""
        return timed(self._step)[1]

    def _step(self) -> None:
        logits = self.model(input_ids=self.tokens, use_cache=False).logits[:, :-1].float()
        log_probs = torch.log_softmax(logits, -1).gather(2, self.tokens[:, 1:, None])
        loss = -log_probs.mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), SETTINGS.clip_grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss = float(loss.detach())


def main() -> None:
    """Both in one process, in alternation, in fp32 and bf16."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=15, help="pairs of measurements")
    options.add_argument("--layers", type=int, default=8)
    options.add_argument("--width", type=int, default=256)
    args = options.parse_args()
    facts = machine(args.threads)
    path = make_model(args.work / "model-train", layers=args.layers, width=args.width, vocab=VOCAB)
    parallel.start(0, 1, "127.0.0.1", free_port())
    torch.set_num_threads(args.threads)
    keep_memory()
    tokens = torch.randint(1, VOCAB, (SAMPLES, TOKENS), generator=torch.Generator().manual_seed(0))
    rows = [_row(path, dtype, tokens, args.repeats) for dtype in DTYPES]
    parallel.stop()
    publish("trainer_step", facts, {"rows": rows}, table(rows), dry=args.dry)


def _row(path: Path, dtype: str, tokens: torch.Tensor, repeats: int) -> Row:
    ours, theirs = Ours(path, dtype, tokens), Theirs(path, dtype, tokens)
    ours.step(), theirs.step()
    # bf16 weights round each update differently from fp32 masters; the first loss has no update in it.
    assert abs(ours.loss - theirs.loss) < (1e-4 if dtype == "fp32" else 0.05), "both compute the same loss"
    mine, plain, ratio = pairs(ours.step, theirs.step, repeats, f"{dtype}, seconds")
    return {
        "dtype": dtype,
        "rlcore, s": mine,
        "transformers + torch, s": plain,
        "ratio": ratio,
        "target": f"≤ {MOST}" if dtype == "fp32" else "",
        "met": verdict(ratio <= MOST) if dtype == "fp32" else "",
    }


if __name__ == "__main__":
    main()
