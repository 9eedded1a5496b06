"""Two tiny Qwen3 models that differ in their weights only, and what transformers says of an answer."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlcore.api.generation import Completion, Request
from rlcore.api.types import Sampling
from rlcore.engines.client import EngineClient

PROMPT = (10, 20, 30, 40, 50, 60, 70)
VOCAB, CONTEXT, END = 512, 1024, 2
TOLERANCE = 1e-4
"""Largest difference of log-probs in fp32: what every run checks of trainer and engine."""
COLD = 0.3
LONG = Sampling(max_tokens=900, temperature=COLD)
"""A response that lasts long enough to be disturbed: so cold, it meets no end token."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def request_of(sampling: Sampling, **fields: Any) -> Request:
    """A request for answers to `PROMPT`, unless `fields` say otherwise."""
    return Request(**{"input_ids": PROMPT, "sampling": sampling, **fields})


References = tuple[Qwen3ForCausalLM, Qwen3ForCausalLM]


def write_models(root: Path) -> tuple[Path, Path]:
    """Hugging Face directories of two random Qwen3 (2 layers, width 64, 512 byte-level tokens, fp32)."""
    tokenizer = _tokenizer()
    for seed, name in enumerate(("a", "b")):
        tokenizer.save_pretrained(root / name)
        _model(seed).save_pretrained(root / name)
    return root / "a", root / "b"


def load_references(paths: tuple[Path, Path]) -> References:
    """The same models in transformers."""
    first, second = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in paths)
    return first.eval(), second.eval()


@torch.no_grad()
def log_probs(
    model: Qwen3ForCausalLM, prompt: Sequence[int], response: Sequence[int], t: float = 1.0
) -> Tensor:
    """Log-probs of the distributions that the response was drawn from, [tokens, vocabulary]."""
    logits: Tensor = model(torch.tensor([[*prompt, *response]])).logits[0]
    return (logits[len(prompt) - 1 : -1] / t).log_softmax(-1)


def gap(
    model: Qwen3ForCausalLM, completion: Completion, *, t: float = 1.0, part: slice = slice(None)
) -> float:
    """The largest difference between the engine's log-probs and transformers', over a part of the tokens."""
    wanted = log_probs(model, PROMPT, completion.token_ids, t).gather(
        1, torch.tensor(completion.token_ids)[:, None]
    )[:, 0]
    return float((wanted - torch.tensor(completion.log_probs))[part].abs().max())


class Running:
    """A long request that is under way."""

    def __init__(self, client: EngineClient, request: Request) -> None:
        self._begun = asyncio.Event()
        self.tokens = 0
        """The tokens that have come so far."""
        self.result = asyncio.create_task(self._follow(client, request))

    async def _follow(self, client: EngineClient, request: Request) -> Completion:
        states: list[Completion] = []
        async for state in client.stream(request):
            states.append(state)
            self.tokens = len(state.token_ids)
            self._begun.set()
        return states[-1]

    async def begun(self) -> None:
        """Returns once it has sampled a token; fails where it failed."""
        waiting = asyncio.create_task(self._begun.wait())
        await asyncio.wait({self.result, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert not self.result.done(), self.result.result()


async def running(client: EngineClient, **fields: Any) -> Running:
    """A long request that has begun; `fields`: those of its `Request` that differ."""
    request = Running(client, request_of(LONG, **fields))
    await request.begun()
    return request


_P = ParamSpec("_P")


class TooLateError(AssertionError):
    """A request had ended before the test could disturb it."""


def in_time(test: Callable[_P, Awaitable[None]]) -> Callable[_P, Awaitable[None]]:
    """Give a test five tries: on a busy machine, its request may end before it is disturbed."""

    @functools.wraps(test)
    async def again(*args: _P.args, **kwargs: _P.kwargs) -> None:
        for _ in range(4):
            with contextlib.suppress(TooLateError):
                return await test(*args, **kwargs)
        await test(*args, **kwargs)

    return again


async def start_over(client: EngineClient, model: Path) -> None:
    """Give a shared server the weights that it was started with, as version 0.

    Flushed apart, by retries: SGLang refuses it just after a response.
    """
    await client.update_from_disk(str(model), 0, flush=False)
    await client.flush_cache()


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([f"{a} + {b} = {a + b}" for a in range(40) for b in range(40)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
    )


def _model(seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        eos_token_id=END,
        pad_token_id=0,
        bos_token_id=None,
        initializer_range=0.2,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[END] = (
            0.0  # rare when cold, common when hot: tests choose whether a response ends
        )
    model.generation_config = GenerationConfig(eos_token_id=END, pad_token_id=0)
    return model
