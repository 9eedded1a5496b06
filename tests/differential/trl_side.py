"""TRL's side of `test_against_trl.py`, in a process of its own: `python trl_side.py CASES.json MODEL`.

Its real trainers, over log-probs and entropies that are given instead of a model's. Prints one JSON array:
of each case the loss and its gradients in the log-probs and in the entropies.
"""

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer


def known(model: str, folder: str, case: dict[str, Any], examples: dict[str, list[str]]) -> dict[str, Any]:
    """What every trainer is given: the CPU, the settings of the case, and data that it never reads."""
    config = {"grpo": GRPOConfig, "dpo": DPOConfig, "sft": SFTConfig}[case["trainer"]]
    more = {"num_generations": 2} if case["trainer"] == "grpo" else {}
    return {
        "model": AutoModelForCausalLM.from_pretrained(model),
        "processing_class": AutoTokenizer.from_pretrained(model),
        "train_dataset": Dataset.from_dict(examples),
        "args": config(output_dir=folder, use_cpu=True, bf16=False, report_to=[], **more, **case["settings"]),
    }


def grpo(model: str, folder: str, case: dict[str, Any], columns: dict[str, Tensor]) -> Tensor:
    """`GRPOTrainer`'s loss; `mask` says what is live."""
    made = GRPOTrainer(
        reward_funcs=lambda completions, **known: [0.0] * len(completions),
        **known(model, folder, case, {"prompt": ["1=", "2="]}),
    )
    made._get_per_token_logps_and_entropies = lambda *given, **known: (
        columns["new"],
        columns["entropy"],
        None,
    )
    mask = columns["mask"].long()
    made.use_vllm = made.vllm_importance_sampling_correction = "weights" in case  # no vLLM is asked for any
    made.model.eval()  # TRL then divides by no number of accumulation steps
    loss: Tensor = made._compute_loss(
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
            "importance_sampling_ratio": torch.tensor(case.get("weights", 0), dtype=torch.float64),
        },
    )
    return loss


def outputs(log_probs: Tensor, mask: Tensor) -> SimpleNamespace:
    """What TRL's fused head returns: zeros where a token has no label. Only the log-probs reach a loss."""
    return SimpleNamespace(
        log_probs=log_probs * mask,
        label_mask=mask.bool(),
        entropy=torch.zeros_like(mask),
        mean_logits=torch.zeros_like(mask),
        is_top1=torch.zeros_like(mask, dtype=torch.bool),
    )


def dpo(model: str, folder: str, case: dict[str, Any], columns: dict[str, Tensor]) -> Tensor:
    """`DPOTrainer`'s loss; of the samples every other one is a chosen response, its rejected one follows."""
    examples = {"prompt": ["1=", "2="], "chosen": ["1", "2"], "rejected": ["2", "1"]}
    made = DPOTrainer(**known(model, folder, case, examples))
    halves = {name: torch.cat([column[0::2], column[1::2]]) for name, column in columns.items()}
    mask = halves["mask"]
    made.model.eval()
    made.ref_model = lambda **known: outputs(halves["reference"], mask)
    ids = torch.ones(len(mask), mask.shape[1] + 1, dtype=torch.int64)
    loss: Tensor = made._compute_loss(
        lambda **known: outputs(halves["new"], mask),
        {"input_ids": ids, "attention_mask": ids, "completion_mask": functional.pad(mask.long(), (1, 0))},
        return_outputs=False,
    )
    return loss


def sft(model: str, folder: str, case: dict[str, Any], columns: dict[str, Tensor]) -> Tensor:
    """`SFTTrainer`'s loss."""
    examples = {"prompt": ["1=", "2="], "completion": ["1", "2"]}
    made = SFTTrainer(**known(model, folder, case, examples))
    mask = columns["mask"]
    made.model.eval()
    labels = torch.ones_like(mask, dtype=torch.int64).masked_fill(mask == 0, -100)
    loss: Tensor = made.compute_loss(lambda **known: outputs(columns["new"], mask), {"labels": labels})
    return loss


LOSSES = {"grpo": grpo, "dpo": dpo, "sft": sft}


def answer(model: str, folder: str, case: dict[str, Any]) -> dict[str, Any]:
    """Loss, and its gradients in the log-probs and in the entropies, where it has any."""
    columns = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in case["columns"].items()}
    leaves = [columns[name].requires_grad_() for name in ("new", "entropy")]
    loss = LOSSES[case["trainer"]](model, folder, case, columns)
    gradients = torch.autograd.grad(loss, leaves, materialize_grads=True, allow_unused=True)
    return {"loss": loss.item(), "gradients": [gradient.tolist() for gradient in gradients]}


def main() -> None:
    """A trainer for each case, for TRL reads its settings when it is made."""
    cases = json.loads(Path(sys.argv[1]).read_text())
    with tempfile.TemporaryDirectory() as folder:
        answers = [answer(sys.argv[2], folder, case) for case in cases]
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
