"""A real SGLang loads what `rlcore convert` and `rlcore export` write, as it is."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Run
from families import FAMILIES
from inputs import CONTEXT, chats, make_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlcore import Completion, Part, Request, Sampling
from rlcore_sglang.client import SglangClient
from rlcore_sglang.config import SglangConfig
from rlcore_testing.checkpoints import randomize
from rlcore_testing.engine_server import TOKEN, launch_of, serving

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1800)]

PYTHON = "RLCORE_SGLANG_PYTHON"
LIMIT_S = 600.0
SAMPLES = 4


@pytest.mark.parametrize("family", ["llama", "glm4_moe"])
async def test_its_log_probs_are_those_of_the_model_that_was_converted(
    run: Run, tmp_path: Path, family: str
) -> None:
    """Into a checkpoint and out of it, every value of it random; against transformers, before."""
    assert PYTHON in os.environ, f"{PYTHON} must name the interpreter that has sglang (`make test-sglang`)"
    model, middle, out = (tmp_path / name for name in ("model", "middle", "out"))
    make_model(model, family, **FAMILIES[family])
    expected: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    randomize(expected)
    expected.save_pretrained(model)
    run("convert", str(model), str(middle), limit=LIMIT_S)
    run("convert", str(middle), str(out), limit=LIMIT_S)

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    config = SglangConfig(python=os.environ[PYTHON], start_limit_s=LIMIT_S)
    sglang = Part(name="sglang", factory="rlcore_sglang.engine:SglangEngine", config=config)
    with serving(launch_of(out, tmp_path, context_length=CONTEXT), sglang) as url:
        async with SglangClient(url, TOKEN) as client:
            for row in chats(SAMPLES, seed=5):
                text = tokenizer.apply_chat_template(
                    row["prompt"], add_generation_prompt=True, tokenize=False
                )
                prompt = tokenizer.encode(text, add_special_tokens=False)
                assert await client.tokenize(text) == tuple(prompt)
                for one in await client.generate(
                    Request(input_ids=prompt, sampling=Sampling(max_tokens=24), n=SAMPLES)
                ):
                    assert _gap(expected, prompt, one) <= 1e-4


@torch.no_grad()
def _gap(model: Any, prompt: list[int], one: Completion) -> float:
    """The largest difference of its log-probs to those of `model`."""
    logits = model(torch.tensor([[*prompt, *one.token_ids]])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(one.token_ids)[:, None])[:, 0]
    return float((expected - torch.tensor(one.log_probs)).abs().max())
