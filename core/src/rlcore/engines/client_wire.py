"""The wire: requests and answers of `/generate` as rlcore's nouns."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from rlcore.api.columns import REPLAYS
from rlcore.api.errors import EngineError
from rlcore.api.generation import SEED_BITS, Completion, Request
from rlcore.api.types import Sampling, Span
from rlcore.engines.client_answers import OUTPUT, token_log_probs

GENERATE = "/generate"
ABORT = "/abort_request"


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What one server can do, asked of it once.

    `weight_session`: tensor updates stand between `/begin_weight_update` and `/end_weight_update`.
    `seeds`: a request's `sampling_seed` is honored. `seeds_siblings`: one request with `n` and one seed
    draws `n` different samples. `min_p`: it may be asked for. `tensor_checksums`: checksums are of HF
    tensors, by `rlcore.checksum`. `tensor_ranks`: payloads that a tensor update takes, one a TP rank.
    `columns`: what was chosen for each token may be asked for: experts, keys. `deltas`: it applies files
    of changes to the weights that it has. `sessions`: a session can be asked for as one. `memory`:
    it gives its memory back, and takes it again, when told to. `packed`: it can give tokens and log-probs as
    bytes (`rlcore.engines.client_answers`). `loads`: it says how many requests run and wait. `policies`: a
    request names the policy that answers.
    """

    version: str
    weight_session: bool
    seeds: bool
    seeds_siblings: bool
    min_p: bool
    tensor_checksums: bool
    tensor_ranks: int = 1
    columns: frozenset[str] = frozenset()
    deltas: bool = False
    sessions: bool = False
    memory: bool = False
    packed: bool = False
    loads: bool = False
    policies: bool = False


def capabilities(info: Mapping[str, Any]) -> Capabilities:
    """Reads `/server_info`: `capabilities` are the server's paths, `abilities` tell what else it can."""
    paths = frozenset(path.strip("/") for path in info.get("capabilities", ()))
    abilities = frozenset(info.get("abilities", ()))
    return Capabilities(
        version=str(info["version"]),
        weight_session="begin_weight_update" in paths,
        seeds="seeds" in abilities,
        seeds_siblings="seeds_siblings" in abilities,
        min_p="min_p" in abilities,
        tensor_checksums="tensor_checksums" in abilities,
        tensor_ranks=int(info.get("tensor_ranks", 1)),
        columns=frozenset(column for column in REPLAYS.values() if info.get(f"enable_return_{column}")),
        deltas="update_weights_from_delta" in paths,
        sessions="sessions" in abilities,
        packed="packed" in abilities,
        loads="v1/loads" in paths,
        policies="policies" in abilities,
        memory={"release_memory_occupation", "resume_memory_occupation"} <= paths,
    )


def sampling_params(sampling: Sampling, seed: int | None) -> dict[str, Any]:
    """`sampling` by the names of the wire. `seed`: None where the server honors none."""
    params: dict[str, Any] = {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k if sampling.top_k > 0 else -1,
        "min_p": sampling.min_p,
        "stop": list(sampling.stop),
        "no_stop_trim": bool(sampling.stop),  # a stop string is of the response, and a reward may ask for it
        "stop_token_ids": list(sampling.stop_token_ids),
    }
    return params if seed is None else {**params, "sampling_seed": seed % 2**SEED_BITS}


def generate_body(request: Request, *, can: Capabilities, columns: Collection[str] = ()) -> dict[str, Any]:
    """The body of `/generate` for all samples of a request.

    One entry with `n` where the server tells the samples' seeds apart; otherwise a batch of `n` equal
    prompts, whose seeds are `seed`, `seed + 1`, … and whose samples have ids that can be aborted.
    """
    if request.sampling.min_p > 0 and not can.min_p:
        raise EngineError("The engine takes no min-p under deterministic inference; use top-p.")
    for column in {*columns} - can.columns:
        raise EngineError(
            f"The engine does not give the {column} that it chose: its model has none, or it was started "
            f"without enable_return_{column}."
        )
    wanted = {"return_logprob": True, **{f"return_{column}": True for column in sorted(columns)}}
    if can.packed:
        wanted["packed"] = True
    ids = list(request.input_ids)
    samples = [f"{request.rid}/{index}" for index in range(request.n)]
    if can.seeds_siblings:
        params = {**sampling_params(request.sampling, request.seed), "n": request.n}
        return {"input_ids": ids, "sampling_params": params, "rid": samples[0], **wanted}
    seeds = [request.seed + index if can.seeds else None for index in range(request.n)]
    entries: dict[str, list[Any]] = {
        "input_ids": [ids] * request.n,
        "sampling_params": [sampling_params(request.sampling, seed) for seed in seeds],
        "rid": samples,
    }
    # A batch of one would be answered by a list, and in a stream by indexed events.
    fields = entries if request.n > 1 else {name: values[0] for name, values in entries.items()}
    return {**fields, **wanted}


def completion(answer: Mapping[str, Any], *, prompt_tokens: int, policy: str = "") -> Completion:
    """One answer of `/generate` to a prompt of `prompt_tokens`, which an abort need not repeat. `policy`:
    who was asked.

    Raises EngineError where the server failed the request.
    """
    meta = answer["meta_info"]
    reason = meta["finish_reason"] or {"type": "pending"}
    if reason["type"] == "abort" and int(reason.get("status_code") or 200) >= 500:
        raise EngineError(f"The engine failed a request: {reason.get('message')}.")
    sampled = token_log_probs(meta, OUTPUT)
    spans = tuple(
        Span(start=int(v["start"]), version=weight_version(v["version"]), policy=policy)
        for v in meta["weight_versions"]
    )
    return Completion(
        token_ids=sampled.ids,
        log_probs=sampled.log_probs,
        text=answer["text"],
        finish_reason=reason["type"],
        spans=spans,
        prompt_tokens=prompt_tokens,
        engine_columns={column: meta[column] for column in REPLAYS.values() if meta.get(column)},
    )


def weight_version(text: str) -> int:
    """The version that rlcore gave; 0 for the weights that the server was started with.

    Raises EngineError where the server was given another name.
    """
    if text == "default":
        return 0
    if not str(text).isdecimal():
        raise EngineError(f"The engine names its weights {text!r}, no version that rlcore published.")
    return int(text)
