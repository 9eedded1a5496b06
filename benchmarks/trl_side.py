"""TRL's half of `vs_trl.py`, run by the Python of TRL's own environment: JSON in, JSON out.

Of several data-parallel processes (torchrun) the first one answers.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Train `job["steps"]` steps; seconds of each whole step and of its `generate`."""
    import torch

    torch.set_num_threads(job["threads"])
    from datasets import Dataset  # type: ignore[import-not-found,import-untyped,unused-ignore]  # TRL's own
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[attr-defined,import-not-found,unused-ignore]  # the same

    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    # An end token behind the model's vocabulary: it is never sampled, so that no sample ends early.
    tokenizer.add_special_tokens({"eos_token": "<never>"})
    model: Any = AutoModelForCausalLM.from_pretrained(job["model"], dtype=getattr(torch, job["dtype"]))
    assert tokenizer.eos_token_id >= model.config.vocab_size, "the end token can not be sampled"
    generating: list[float] = []
    generate = model.generate

    def timed_generate(*args: Any, **known: Any) -> Any:
        begin = time.perf_counter()
        found = generate(*args, **known)
        generating.append(time.perf_counter() - begin)
        return found

    model.generate = timed_generate
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *args: Any, **known: Any) -> None:
            ends.append(time.perf_counter())

    rows = [json.loads(line) for line in Path(job["prompts"]).read_text().splitlines()]
    samples = job["prompts_per_step"] * job["group_size"]
    settings = GRPOConfig(
        output_dir=job["work"],
        max_steps=job["steps"],
        per_device_train_batch_size=samples // job["accumulate"] // job["processes"],
        gradient_accumulation_steps=job["accumulate"],
        generation_batch_size=samples,
        num_generations=job["group_size"],
        max_completion_length=job["tokens"],
        learning_rate=job["lr"],
        lr_scheduler_type="constant",
        beta=0.0,
        loss_type="grpo",
        top_k=0,
        temperature=1.0,
        bf16=False,  # the model's own dtype, without autocast: the faster way
        gradient_checkpointing=False,
        use_cpu=job["device"] == "cpu",
        report_to=[],
        save_strategy="no",
        logging_steps=job["steps"],
        disable_tqdm=True,
        seed=0,
    )
    adapter = None
    if job["lora"]:
        from peft import LoraConfig

        adapter = LoraConfig(r=job["lora"], lora_alpha=32, lora_dropout=0.0, target_modules="all-linear")
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=matches,  # type: ignore[arg-type,unused-ignore]  # it may return None as well
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[Clock()],
        peft_config=adapter,
    )
    begin = time.perf_counter()
    trainer.train()
    steps = [end - start for start, end in zip([begin, *ends], ends, strict=False)]
    import trl

    return {"trl": trl.__version__, "torch": torch.__version__, "steps": steps, "generate": generating}


def matches(completions: list[str], label: list[str], **_: Any) -> list[float]:
    """The share of characters that are right, as rlcore's `token_match` counts them."""
    return [
        sum(a == b for a, b in zip(found, wanted, strict=False)) / max(len(found), len(wanted), 1)
        for found, wanted in zip(completions, label, strict=True)
    ]


if __name__ == "__main__":
    answer = main(json.loads(sys.argv[1]))
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(answer))
