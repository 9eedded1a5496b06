"""SGLang's native wire: requests and answers of `/generate` as rlcore's nouns."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlcore.api.errors import EngineError
from rlcore.api.generation import Completion
from rlcore.api.types import Sampling, Span
from rlcore.engines.client_answers import OUTPUT, token_log_probs

SEED_BITS = 63


GENERATE = "/generate"
ABORT = "/abort_request"


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What one server can do, asked of it once.

    `weight_session`: tensor updates stand between `/begin_weight_update` and `/end_weight_update`.
    `seeds`: a request's `sampling_seed` is honored. `seeds_siblings`: one request with `n` and one seed
    draws `n` different samples. `min_p`: it may be asked for. `tensor_checksums`: checksums are of HF
    tensors, by `rlcore.checksums`. `tensor_ranks`: payloads that a tensor update takes, one a TP rank.
    `routed_experts`: the experts that were chosen for each token may be asked for. `deltas`: it applies files
    of changes to the weights that it has. `sessions`: a session can be asked for as one. `memory`:
    it gives its memory back, and takes it again, when told to. `packed`: it can give tokens and log-probs as
    bytes (`rlcore.engines.client_answers`). `loads`: it says how many requests run and wait.
    """

    version: str
    weight_session: bool
    seeds: bool
    seeds_siblings: bool
    min_p: bool
    tensor_checksums: bool
    tensor_ranks: int = 1
    routed_experts: bool = False
    deltas: bool = False
    sessions: bool = False
    memory: bool = False
    packed: bool = False
    loads: bool = False


def capabilities(info: Mapping[str, Any], endpoints: Iterable[str]) -> Capabilities:
    """From `/server_info` and the paths that the server has."""
    paths = frozenset(path.strip("/") for path in endpoints)
    # SGLang honors the seed of a request under deterministic inference only, and ends there when asked for
    # min-p.
    is_deterministic = bool(info.get("enable_deterministic_inference"))
    # A server of ours says what it can do. What SGLang can do follows from its settings and its paths.
    says = frozenset(info.get("abilities", ()))
    return Capabilities(
        version=str(info["version"]),
        weight_session="begin_weight_update" in paths,
        seeds="seeds" in says or is_deterministic,
        seeds_siblings="seeds_siblings" in says,
        min_p="min_p" in says or not is_deterministic,
        tensor_checksums="tensor_checksums" in says,
        tensor_ranks=int(info.get("tp_size") or 1),
        routed_experts=bool(info.get("enable_return_routed_experts")),
        deltas="update_weights_from_delta" in paths,
        sessions="sessions" in says,
        packed="packed" in says,
        loads="v1/loads" in paths,
        memory={"release_memory_occupation", "resume_memory_occupation"} <= paths,
    )


def sampling_params(sampling: Sampling, seed: int | None) -> dict[str, Any]:
    """`sampling` by SGLang's names."""
    params: dict[str, Any] = {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k if sampling.top_k > 0 else -1,
        "min_p": sampling.min_p,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
    }
    return params if seed is None else {**params, "sampling_seed": seed % 2**SEED_BITS}


def request_ids(rid: str, n: int) -> list[str]:
    """The ids of the `n` samples of one request.

    Each ends in a slash: SGLang aborts every request whose id *starts* with the given one.
    """
    return [f"{rid}/{index}/" for index in range(n)]


def generate_body(
    ids: Sequence[int],
    sampling: Sampling,
    *,
    n: int,
    seed: int | None,
    rid: str,
    can: Capabilities,
    routed_experts: bool = False,
) -> dict[str, Any]:
    """The body of `/generate` for `n` samples of one prompt.

    One entry with `n` where the server tells the samples' seeds apart; otherwise a batch of `n` equal
    prompts, whose seeds are `seed`, `seed + 1`, … and whose samples have ids that can be aborted.
    A server that honors seeds gives all requests without one the same: these get one at random.
    """
    if sampling.min_p > 0 and not can.min_p:
        raise EngineError("SGLang with deterministic inference ends when asked for min-p; use top-p.")
    if routed_experts and not can.routed_experts:
        raise EngineError(
            "The engine does not give the experts that it chose: its model has none, or it was "
            "started without enable_return_routed_experts."
        )
    wanted = {"return_logprob": True, **({"return_routed_experts": True} if routed_experts else {})}
    if can.packed:
        wanted["packed"] = True
    if can.seeds_siblings:
        params = sampling_params(sampling, seed)
        return {
            "input_ids": list(ids),
            "sampling_params": {**params, "n": n},
            "rid": request_ids(rid, 1)[0],
            **wanted,
        }
    start = secrets.randbits(SEED_BITS) if seed is None else seed
    seeds = [start + index if can.seeds else None for index in range(n)]
    entries: dict[str, list[Any]] = {
        "input_ids": [list(ids)] * n,
        "sampling_params": [sampling_params(sampling, each) for each in seeds],
        "rid": request_ids(rid, n),
    }
    # A batch of one would be answered by a list, and in a stream by indexed events.
    fields = entries if n > 1 else {name: values[0] for name, values in entries.items()}
    return {**fields, **wanted}


def completion(answer: Mapping[str, Any], *, prompt_tokens: int) -> Completion:
    """One answer of `/generate` to a prompt of `prompt_tokens`, which SGLang does not repeat in each abort.

    Raises EngineError where the server failed the request.
    """
    meta = answer["meta_info"]
    reason = meta["finish_reason"] or {"type": "pending"}
    if reason["type"] == "abort" and int(reason.get("status_code") or 200) >= 500:
        raise EngineError(f"The engine failed a request: {reason.get('message')}.")
    sampled = token_log_probs(meta, OUTPUT)
    # SGLang before 0.5.23 gives one version; later ones, and `local`, where each version begins.
    versions = meta.get("weight_versions") or [{"start": 0, "version": meta["weight_version"]}]
    spans = tuple(Span(start=int(v["start"]), version=weight_version(v["version"])) for v in versions)
    return Completion(
        token_ids=sampled.ids,
        log_probs=sampled.log_probs,
        text=answer["text"],
        finish_reason=reason["type"],
        spans=spans,
        prompt_tokens=prompt_tokens,
        routed_experts=meta.get("routed_experts") or "",
    )


def weight_version(text: str) -> int:
    """The version that rlcore gave; 0 for the weights that the server was started with.

    Raises EngineError where the server was given another name.
    """
    if text == "default":
        return 0
    if not str(text).isdecimal():
        raise EngineError(
            f"The engine names its weights {text!r}, which is no version that rlcore published."
        )
    return int(text)
