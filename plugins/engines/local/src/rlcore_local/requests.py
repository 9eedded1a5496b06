"""The body of `/generate`: what is accepted, with SGLang's names, bounds and defaults."""

import uuid
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rlcore import REPLAYS

MAX_STOP_STRINGS = 32
MAX_SAMPLES = 4096
"""The most samples of one prompt."""


class RequestError(ValueError):
    """A request that is refused: HTTP 400 with this message."""


class SamplingParams(BaseModel):
    """How tokens are drawn. A null stands for the default; `max_new_tokens` null for all that fits.

    `top_k` -1 keeps the whole vocabulary, `temperature` 0 takes the likeliest token. `ignore_eos` passes over
    the stop token ids as well as the end token, as in SGLang.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    max_new_tokens: int | None = Field(128, ge=0)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = -1
    min_p: float = Field(0.0, ge=0, le=1)
    stop: list[str] = []
    stop_token_ids: list[int] = []
    n: int = Field(1, ge=1, le=MAX_SAMPLES)
    sampling_seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if value is not None or key == "max_new_tokens"}

    @field_validator("top_k")
    @classmethod
    def _top_k_is_whole_or_positive(cls, top_k: int) -> int:
        if top_k != -1 and top_k < 1:
            raise ValueError(f"must be -1 (the whole vocabulary) or at least 1, got {top_k}")
        return top_k

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_or_many(cls, stop: Any) -> Any:
        stops = [stop] if isinstance(stop, str) else stop
        if isinstance(stops, list) and len(stops) > MAX_STOP_STRINGS:
            raise ValueError(f"at most {MAX_STOP_STRINGS} stop strings are allowed, got {len(stops)}")
        return [text for text in stops if text] if isinstance(stops, list) else stops


_UNASKED = ("return_text_in_logprobs", "return_hidden_states", "background", "no_logs", "return_bytes")
ROUTER_DEFAULTS = {"model": None, "log_metrics": True, **dict.fromkeys((*_UNASKED, "return_entropy"), False)}
"""Fields, with their values, that sglang-router (0.3) adds to every request."""


class InputBody(BaseModel):
    """The JSON of `/classify`: one text or a batch."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    input_ids: list[int] | list[list[int]] | None = None
    text: str | list[str] | None = None
    rid: str | list[str] | None = None


class GenerateBody(InputBody):
    """The JSON of `/generate`: one prompt or a batch; lists beside a batch have one entry a prompt."""

    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    return_routed_experts: bool = False
    return_indexer_topk: bool = False
    packed: bool = False
    stream: bool = False
    lora_path: str | list[str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_defaults(cls, body: Any) -> Any:
        """What asks for nothing beyond this server counts as not given."""
        if not isinstance(body, dict):
            return body
        return {key: value for key, value in body.items() if (key, value) not in ROUTER_DEFAULTS.items()}


class Ask(BaseModel):
    """One prompt of a request, checked: `n` samples will be drawn from it.

    `request`: the rid that the client gave to the whole; `rid`: this prompt's own. `columns`: of what the
    model chooses for each token, those that the answers come with. `adapter`: of a policy beside the run's
    own, by SGLang's field `lora_path`.
    """

    model_config = ConfigDict(frozen=True)

    request: str
    rid: str
    prompt: list[int] | str
    params: SamplingParams
    return_logprob: bool
    logprob_start_len: int
    columns: frozenset[str] = frozenset()
    packed: bool = False
    adapter: str = ""


class Asks(BaseModel):
    """A request, checked. `is_single`: the answer is one object, not a list."""

    model_config = ConfigDict(frozen=True)

    asks: list[Ask]
    is_single: bool
    stream: bool


def explain(error: ValidationError) -> str:
    """The first complaint of pydantic as `field: what is wrong`."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("list[", "dict[")))
    return f"{place}: {first['msg']}" if place else first["msg"]


def parse_generate(body: Any, *, alike: bool = True) -> Asks:
    """Check the JSON of `/generate`; `RequestError` says what is wrong. `alike`: all prompts have one `n`."""
    try:
        parsed = GenerateBody.model_validate(body)
        prompts, is_batch = prompts_of(parsed)
        count = len(prompts)
        params = [
            SamplingParams.model_validate(given)
            for given in _spread(parsed.sampling_params, {}, count, "sampling_params")
        ]
    except ValidationError as error:
        raise RequestError(explain(error)) from error
    if alike and len({param.n for param in params}) > 1:
        raise RequestError("sampling_params.n: must be the same for all prompts of a batch")
    rids = rids_of(parsed, count, is_batch)
    logprobs = _spread(parsed.return_logprob, False, count, "return_logprob")
    starts = _spread(parsed.logprob_start_len, -1, count, "logprob_start_len")
    adapters = _spread(parsed.lora_path, "", count, "lora_path")
    columns = frozenset(column for column in REPLAYS.values() if getattr(parsed, f"return_{column}"))
    asks = [
        Ask(
            request=request,
            rid=rid,
            prompt=prompt,
            params=param,
            return_logprob=logprob,
            logprob_start_len=start,
            columns=columns,
            packed=parsed.packed,
            adapter=adapter,
        )
        for (request, rid), prompt, param, logprob, start, adapter in zip(
            rids, prompts, params, logprobs, starts, adapters, strict=True
        )
    ]
    return Asks(asks=asks, is_single=not is_batch and params[0].n == 1, stream=parsed.stream)


def prompts_of(body: InputBody) -> tuple[list[Any], bool]:
    """The prompts, and whether they came as a batch."""
    if (body.input_ids is None) == (body.text is None):
        raise RequestError("Either text or input_ids should be provided.")
    if body.text is not None:
        return ([body.text], False) if isinstance(body.text, str) else (body.text, True)
    assert body.input_ids is not None
    if not body.input_ids:
        raise RequestError("input_ids: must not be empty")
    is_batch = isinstance(body.input_ids[0], list)
    return (body.input_ids, True) if is_batch else ([body.input_ids], False)


def token_ids(prompt: list[int] | str, tokenizer: Any, vocab_size: int) -> list[int]:
    """The tokens of a prompt, each one of the model's. `tokenizer`: the model's, or None."""
    if isinstance(prompt, str) and tokenizer is None:
        raise RequestError("text: the model has no tokenizer, use input_ids")
    ids = list(tokenizer.encode(prompt)) if isinstance(prompt, str) else prompt
    if not ids:
        raise RequestError("input_ids: must not be empty")
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise RequestError(f"input_ids: the token ids must be in [0, {vocab_size - 1}]")
    return ids


def _spread(value: Any, default: Any, count: int, name: str) -> list[Any]:
    """One value a prompt: a list is taken as it is, anything else is repeated."""
    if not isinstance(value, list):
        return [default if value is None else value] * count
    if len(value) != count:
        raise RequestError(f"{name}: {len(value)} entries for {count} prompts")
    return value


def rids_of(body: InputBody, count: int, is_batch: bool) -> list[tuple[str, str]]:
    """(rid of the request, rid of the prompt) for each prompt."""
    if isinstance(body.rid, list):
        if len(set(body.rid)) < len(body.rid):
            raise RequestError("Duplicate request IDs detected within the request")
        return [(rid, rid) for rid in _spread(body.rid, "", count, "rid")]
    base = body.rid or uuid.uuid4().hex
    return [(base, f"{base}_{index}" if is_batch else base) for index in range(count)]
