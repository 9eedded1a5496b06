"""What transformers says where a run has ended because trainer and engine disagree."""

import tomllib
from pathlib import Path

import torch

from rlcore_saved.batch_file import load_batch


def who_is_wrong(folder: Path) -> str:
    """For each run in `folder` that kept such a batch: how far the engine's log-probs are from transformers'.

    The trainer is wrong where they are near.
    """
    return "\n".join(map(_engine_gap, sorted(folder.rglob("log_prob_gap_step_*.safetensors"))))


def _engine_gap(path: Path) -> str:
    from transformers import AutoModelForCausalLM  # seconds, and seldom needed

    batch = load_batch(path)
    folder = path.parent / "model"  # a preset's
    if not folder.exists():
        folder = Path(tomllib.loads((path.parent / "run.toml").read_text())["model"])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs: list[torch.Tensor] = []
    start = 0
    for prompt, response in zip(batch.prompt_lengths.tolist(), batch.response_lengths.tolist(), strict=True):
        tokens = batch.tokens[start : start + prompt + response].long()
        with torch.no_grad():
            log_probs = torch.log_softmax(model(tokens[None]).logits[0], dim=-1)
        theirs.append(log_probs[prompt - 1 : -1].gather(1, tokens[prompt:, None])[:, 0])
        start += prompt + response
    trained = batch.per_token["loss_mask"] > 0
    gaps = (batch.per_token["rollout_log_probs"] - torch.cat(theirs))[trained]
    return f"{path}: engine - transformers: {' '.join(f'{gap:.2g}' for gap in gaps.tolist())}"
