"""TRL's side of `test_against_trl.py`, in a process of its own: `python trl_side.py CASES.json MODEL`.

Its real `GRPOTrainer`, over log-probs and entropies that are given instead of a model's. Prints one JSON
array: of each case the loss and its gradients in the log-probs and in the entropies.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


def trainer(model: str, folder: str, settings: dict[str, Any]) -> GRPOTrainer:
    """A trainer on the CPU whose settings are those of the case; it never sees its model or its data."""
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model),
        processing_class=AutoTokenizer.from_pretrained(model),
        reward_funcs=lambda completions, **known: [0.0] * len(completions),
        train_dataset=Dataset.from_dict({"prompt": ["1=", "2="]}),
        args=GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, report_to=[], num_generations=2, **settings
        ),
    )


def answer(made: GRPOTrainer, case: dict[str, Any]) -> dict[str, Any]:
    """Loss and gradients; each column is padded with zeros to [B, T], and `mask` says what is live."""
    columns = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in case["columns"].items()}
    leaves = [columns.pop(name).requires_grad_() for name in ("new", "entropy")]
    made._get_per_token_logps_and_entropies = lambda *given, **known: (*leaves, None)
    mask = columns.pop("mask").long()
    made.model.eval()  # TRL then divides by no number of accumulation steps
    loss = made._compute_loss(
        made.model,
        {
            "prompt_ids": torch.ones(len(mask), 1, dtype=torch.int64),
            "prompt_mask": torch.ones(len(mask), 1, dtype=torch.int64),
            "completion_ids": torch.ones_like(mask),
            "completion_mask": torch.ones_like(mask),
            "tool_mask": mask,
            "num_items_in_batch": mask.sum(),
            "old_per_token_logps": columns["old"],
            "ref_per_token_logps": columns["reference"],
            "advantages": torch.tensor(case["advantages"], dtype=torch.float64),
        },
    )
    gradients = torch.autograd.grad(loss, leaves, materialize_grads=True)
    return {"loss": loss.item(), "gradients": [gradient.tolist() for gradient in gradients]}


def main() -> None:
    """A trainer for each case, for TRL reads its settings when it is made."""
    cases = json.loads(Path(sys.argv[1]).read_text())
    with tempfile.TemporaryDirectory() as folder:
        answers = [answer(trainer(sys.argv[2], folder, case["settings"]), case) for case in cases]
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
