"""One sample while it is generated, and the answer that it becomes."""

import hashlib
import math
import time
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from rlcore_local.requests import SamplingParams

TokenLogprob = list[Any]
"""`[log-prob or None, token id, None]`, as SGLang writes it (the last entry would be the token's text)."""


def noise_keys(seed: str, prompt: list[int], count: int) -> list[int]:
    """64-bit keys of the random numbers of `count` samples. Each is of the seed, the prompt and its index."""
    base = hashlib.blake2b(np.asarray(prompt, dtype=np.int64).tobytes(), digest_size=8)
    base.update(f"/{seed}/".encode())
    keys: list[int] = []
    for index in range(count):
        # The prompt is hashed once, whatever the count.
        digest = base.copy()
        digest.update(str(index).encode())
        keys.append(int.from_bytes(digest.digest(), "little"))
    return keys


@dataclass(eq=False, kw_only=True)
class Sequence:
    """A sample: its prompt, what was generated so far, and why it ended (`finish`, SGLang's dictionary).

    `key`: of `noise_keys`. `limit`: most tokens to generate, cut to the context. `versions`: (first token,
    weight version) of each span. `scores`: the log-probs of the prompt's tokens from `score_from + 1` on.
    `columns`: those asked for of what the model chooses; `chosen`: by column, what it chose for each token
    that was taken in. `adapter`: of the policy that answers, or empty.
    """

    rid: str
    request: str
    order: int
    prompt: list[int]
    params: SamplingParams
    key: int
    limit: int
    stop_ids: frozenset[int]
    return_logprob: bool = False
    score_from: int | None = None
    columns: frozenset[str] = frozenset()
    packed: bool = False
    stream: bool = False
    adapter: str = ""
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    scores: list[float] | None = None
    versions: list[tuple[int, str]] = field(default_factory=list)
    chosen: dict[str, list[bytes]] = field(default_factory=dict)
    finish: dict[str, Any] | None = None
    retractions: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def tokens(self) -> list[int]:
        """The prompt and what was generated after it."""
        return self.prompt + self.output if self.output else self.prompt

    def mark_version(self, version: str) -> None:
        """State the weight version of the tokens from here on."""
        start = len(self.output)
        if self.versions and self.versions[-1][0] == start:
            # It made no token.
            self.versions.pop()
        if not self.versions or self.versions[-1][1] != version:
            self.versions.append((start, version))

    def accept(self, token: int, logprob: float, tokenizer: PreTrainedTokenizerBase | None) -> None:
        """Append a sampled token and see whether it ends the sample.

        The order is SGLang's: a stop string goes before a stop token, and that before the length.
        """
        self.output.append(token)
        self.logprobs.append(logprob)
        matched = self._matched_stop(tokenizer)
        if matched is not None:
            self.finish = {"type": "stop", "matched": matched}
        elif token in self.stop_ids:
            self.finish = {"type": "stop", "matched": token}
        elif len(self.output) >= self.limit:
            self.finish = {"type": "length", "length": self.limit}

    def abort(self, message: str) -> None:
        """End the sample here, with what it has."""
        self.finish = {"type": "abort", "message": message, "status_code": None, "err_type": None}

    def _matched_stop(self, tokenizer: PreTrainedTokenizerBase | None) -> str | None:
        stops = self.params.stop
        if not stops or tokenizer is None:
            return None
        # A token has one byte of text at least, unless it is special: so many tokens hold any stop string.
        window = max(len(stop.encode()) for stop in stops) + 1
        tail = self._decode(tokenizer, self.output[-window:])
        return next((stop for stop in stops if stop in tail), None)

    def _decode(self, tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
        text = tokenizer.decode(
            ids,
            skip_special_tokens=self.params.skip_special_tokens,
            spaces_between_special_tokens=self.params.spaces_between_special_tokens,
        )
        assert isinstance(text, str)
        return text

    def _text(self, tokenizer: PreTrainedTokenizerBase | None) -> str:
        """The text without the stop token or string that ended it; empty for a model without a tokenizer.

        With `no_stop_trim` it is the text of all tokens, as SGLang's.
        """
        if tokenizer is None:
            return ""
        if self.params.no_stop_trim:
            return self._decode(tokenizer, self.output)
        matched = (self.finish or {}).get("matched")
        text = self._decode(tokenizer, self.output[:-1] if isinstance(matched, int) else self.output)
        return text.partition(matched)[0] if isinstance(matched, str) else text

    def answer(self, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
        """SGLang's JSON object for the sample as it stands."""
        meta: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": self.finish,
            "prompt_tokens": len(self.prompt),
            "completion_tokens": len(self.output),
            "cached_tokens": 0,
            "num_retractions": self.retractions,
            "weight_version": self.versions[-1][1],
            "weight_versions": self._spans(),
            "e2e_latency": time.monotonic() - self.started,
        }
        if self.return_logprob and self.packed:
            if self.score_from is not None:
                meta["input_packed"] = packed(*self._scored())
            meta["output_packed"] = packed(self.output, self.logprobs)
        elif self.return_logprob:
            meta["input_token_logprobs"] = rows(*self._scored())
            meta["output_token_logprobs"] = rows(self.output, self.logprobs)
        if self.finish is not None:
            meta |= {column: self._chosen(column) for column in self.columns}
        ids = {} if self.packed else {"output_ids": list(self.output)}
        return {"text": self._text(tokenizer), **ids, "meta_info": meta}

    def _chosen(self, column: str) -> str:
        """Base64 of what was chosen for all tokens but the last: it was sampled, and not taken in."""
        chosen = self.chosen.get(column, [])  # none where it was aborted before its turn
        return b64encode(b"".join(chosen[: len(self.tokens) - 1])).decode()

    def _spans(self) -> list[dict[str, Any]]:
        """SGLang's spans, `end` exclusive. A version without tokens shows only where there is no other."""
        spans = [entry for entry in self.versions if entry[0] < len(self.output)] or self.versions[-1:]
        ends = [start for start, _ in spans[1:]] + [len(self.output)]
        return [
            {"version": version, "start": start, "end": end}
            for (start, version), end in zip(spans, ends, strict=True)
        ]

    def _scored(self) -> tuple[list[int], list[float | None]]:
        """Tokens and log-probs from `score_from` on; the first has none, as nothing stands before it."""
        if self.score_from is None or self.scores is None:
            return [], []
        return self.prompt[self.score_from :], [None, *self.scores]


def rows(ids: list[int], logprobs: Iterable[float | None]) -> list[TokenLogprob]:
    """One row a token, in SGLang's form."""
    return [[logprob, token, None] for logprob, token in zip(logprobs, ids, strict=True)]


def packed(ids: list[int], logprobs: Iterable[float | None]) -> dict[str, str]:
    """The same as base64 of little-endian int32 and float64, NaN where there is none."""
    numbers = [math.nan if logprob is None else logprob for logprob in logprobs]
    return {"ids": _base64(np.array(ids, "<i4")), "log_probs": _base64(np.array(numbers, "<f8"))}


def _base64(numbers: NDArray[Any]) -> str:
    return b64encode(numbers.tobytes()).decode()
