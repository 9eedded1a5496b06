"""`EngineClient`: asks one engine server, over rlcore's HTTP protocol, which began as SGLang's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

from rlcore.api.errors import EngineError
from rlcore.api.generation import Completion, Request
from rlcore.api.packed import PackedFloats
from rlcore.engines import client_wire as wire
from rlcore.engines.client_answers import (
    INPUT,
    TokenLogProbs,
    in_turn,
    read_answers,
    size_of,
    token_log_probs,
)
from rlcore.engines.client_http import Http, RefusedError
from rlcore.engines.client_wire import ABORT, GENERATE, Capabilities
from rlcore.engines.tally import EngineTally

FLUSH_TRIES = 50
FLUSH_WAIT_S = 0.1
SHOWN_CHARS = 80

PauseMode = Literal["abort", "in_place", "retract"]
"""What a pause does to running requests: end them, hold them with their KV cache, or hold them without it."""
_LOADS = ("num_running_reqs", "num_waiting_reqs")
MemoryTag = Literal["weights", "kv_cache", "cuda_graph"]


class EngineClient:
    """Talks to one server. Belongs to one event loop; use it as an async context manager or `close` it.

    `timeout_s` bounds one generation request, `control_timeout_s` any other. At most `concurrency`
    generation requests are under way at once. Empty prompts, and ids outside `vocab_size` where that is
    given, are refused here, because one of them may end a server. `columns`: those of `rlcore.REPLAYS` that
    completions come with. Every failure is an EngineError; nothing is sent twice but `flush_cache`.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeout_s: float = 600.0,
        control_timeout_s: float = 120.0,
        concurrency: int = 256,
        vocab_size: int | None = None,
        columns: Collection[str] = (),
        capabilities: Capabilities | None = None,
        headers: Callable[[Request], Mapping[str, str]] = lambda _: {},
    ) -> None:
        """`capabilities`: those of the servers behind a router, since a router can't be asked for its own.

        `headers`: those that a router needs with a request (`Router.headers`).
        """
        self._http = Http(url, token)
        self._timeout_s = timeout_s
        self._control_s = control_timeout_s
        # For generation alone: an abort must get through while all slots are taken.
        self._slots = asyncio.Semaphore(concurrency)
        self._vocab_size = vocab_size
        self._columns = columns
        self._capabilities = capabilities
        self._headers = headers
        # A request's id → the ids of its samples at the server, by which they can be aborted.
        self._running: dict[str, list[str]] = {}
        self._tally = EngineTally()

    @property
    def url(self) -> str:
        """Where the server listens."""
        return self._http.url

    async def close(self) -> None:
        """Closes the connections; what is under way fails. May be called again."""
        await self._http.close()

    async def __aenter__(self) -> EngineClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- generation ------------------------------------------------------------------------------------

    async def generate(self, request: Request) -> list[Completion]:
        """The completions of one request, in the order of their seeds.

        `request.session` is for the client of an engine that begins requests together, and has no effect
        here. `token_ids` are exactly what was sampled, a stop token included; `text` ends before the stop.
        A completion that was aborted holds what had been sampled (`finish_reason` "abort").
        """
        body = await self._generate_body(request)
        return await self._completions(request, body, self._answered(body, self._headers(request)))

    async def stream(self, request: Request) -> AsyncIterator[Completion]:
        """One completion as it grows: each item holds all tokens so far, the last one is complete.

        Until then `finish_reason` is "pending". `request.n` must be 1.
        """
        body = {**await self._generate_body(request), "stream": True}
        async with self._slots:
            self._running[request.rid] = _as_list(body["rid"])
            try:
                async for event in self._http.events(GENERATE, body, timeout_s=self._timeout_s):
                    yield self._completion(event, prompt_tokens=len(request.input_ids), policy=request.policy)
            finally:
                del self._running[request.rid]

    async def score(self, token_ids: Sequence[int], *, start: int = 1, policy: str = "") -> PackedFloats:
        """log p(token i | tokens before i) for i = `start` … len - 1, at temperature 1; `start` > 0.

        `policy`: as in a `Request`.
        """
        self._check_ids(token_ids)
        return (await self._read({"input_ids": list(token_ids)}, start - 1, policy)).log_probs[1:]

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """The ids that the server's tokenizer makes of `text`, as a prompt."""
        return tuple((await self._read({"text": text}, 0)).ids)

    async def _read(self, prompt: Mapping[str, Any], start: int, policy: str = "") -> TokenLogProbs:
        """The tokens of `prompt` from `start` on; the first has no log-prob."""
        body = {
            **prompt,
            **await self._policy(policy),
            **({"packed": True} if (await self.capabilities()).packed else {}),
            # Nothing is sampled: the server only reads.
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": start,
        }
        async with self._slots:
            answer = await read_answers(
                await self._http.post_bytes(GENERATE, body, timeout_s=self._timeout_s)
            )
        return token_log_probs(answer["meta_info"], INPUT)

    async def abort(self, rid: str | None = None) -> None:
        """Ends request `rid` of this client, or every request of the server; what was sampled comes back."""
        if rid is None:
            await self._control(ABORT, {"rid": "", "abort_all": True})
            return
        # A request that has ended meanwhile has nothing left to abort.
        for sample_id in self._running.get(rid, ()):
            await self._end(sample_id)

    async def pause(self, mode: PauseMode) -> None:
        """Stops generation: `abort` ends the requests, `in_place` keeps caches, `retract` drops them."""
        await self._control("/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        """Goes on after `pause`."""
        await self._control("/continue_generation", {})

    # --- state -----------------------------------------------------------------------------------------

    async def health(self) -> None:
        """Returns where the server generates a token; EngineError otherwise."""
        await self._http.get("/health_generate", timeout_s=self._control_s)

    async def ping(self, *, timeout_s: float) -> None:
        """Returns where the server's scheduler answers; samples nothing, so that batches stay as they are."""
        await self._http.get("/server_info", timeout_s=timeout_s)

    async def reach(self, *, timeout_s: float) -> None:
        """Returns where the server's process answers, whatever its scheduler is busy with."""
        await self._http.get("/model_info", timeout_s=timeout_s)

    def take_tally(self) -> EngineTally:
        """What the server has done since the last call."""
        tally, self._tally = self._tally, EngineTally()
        return tally

    async def look(self) -> None:
        """Note how busy the server is, where it says so."""
        if not (await self.capabilities()).loads:
            return
        ranks = (await self._answer("/v1/loads", "loads"))["loads"]
        self._tally.look(*(sum(int(rank[key]) for rank in ranks) for key in _LOADS))

    async def server_info(self) -> Mapping[str, Any]:
        """What the server says of its settings."""
        return await self._answer("/server_info", "version")

    async def model_info(self) -> Mapping[str, Any]:
        """What the server says of its model."""
        return await self._answer("/model_info", "weight_version")

    async def weight_version(self) -> int:
        """The version of the weights that the server would generate with now."""
        return wire.weight_version((await self.model_info())["weight_version"])

    async def capabilities(self) -> Capabilities:
        """What the server can do; asked once."""
        if self._capabilities is None:
            self._capabilities = wire.capabilities(await self._features())
        return self._capabilities

    async def _features(self) -> Mapping[str, Any]:
        """What the server says of its settings, paths and abilities, as `wire.capabilities` reads it."""
        return await self.server_info()

    async def flush_cache(self) -> None:
        """Empties the prefix cache. Retried: a server with requests under way refuses, by HTTP 400."""
        for attempt in range(FLUSH_TRIES):
            try:
                await self._control("/flush_cache", {})
                return
            except RefusedError as error:
                if error.status != 400 or attempt == FLUSH_TRIES - 1:
                    raise
            await asyncio.sleep(FLUSH_WAIT_S)

    async def release_memory(self, *tags: MemoryTag) -> None:
        """Gives the devices' memory of `tags` back, or all of it. The server must be idle (`flush_cache`)."""
        await self._control("/release_memory_occupation", {"tags": list(tags or get_args(MemoryTag))})

    async def resume_memory(self, *tags: MemoryTag) -> None:
        """Takes the memory again that was released: that of `tags`, each of which only once, or all of it."""
        await self._control("/resume_memory_occupation", {"tags": list(tags or get_args(MemoryTag))})

    # --- weights ---------------------------------------------------------------------------------------

    async def update_from_disk(self, path: str, version: int, *, flush: bool = True) -> None:
        """Loads the Hugging Face directory `path`, as the server sees it.

        `flush`: without the keys and values that the old weights made.
        """
        body = {"model_path": path, "weight_version": str(version), "flush_cache": flush}
        await self.update("/update_weights_from_disk", body)

    async def update(self, path: str, body: Mapping[str, Any]) -> None:
        """Posts `body` to one of the paths that take weights up: a way of weights knows its own.

        EngineError where the server says that it failed.
        """
        answer = await self._control(path, body)
        if not answer["success"]:
            raise EngineError(f"The engine at {self.url} failed {path}: {answer['message']}")

    async def begin_weight_update(self) -> None:
        """Opens an update; nothing to do where the server knows no such session."""
        if (await self.capabilities()).weight_session:
            await self.update("/begin_weight_update", {})

    async def end_weight_update(self) -> None:
        """Closes an update."""
        if (await self.capabilities()).weight_session:
            await self.update("/end_weight_update", {})

    async def checksums(self) -> dict[str, str]:
        """Name → checksum of the server's tensors; the names of rank r > 0 end in `@r`."""
        answer = await self._control("/weights_checker", {"action": "checksum"})
        checksums: dict[str, str] = {}
        for rank, info in enumerate(answer["ranks"]):
            suffix = f"@{rank}" if rank else ""
            checksums.update({name + suffix: value for name, value in info["checksums"].items()})
        return checksums

    # --- within ----------------------------------------------------------------------------------------

    async def _generate_body(self, request: Request) -> dict[str, Any]:
        self.check(request)
        can = await self.capabilities()
        body = wire.generate_body(request, can=can, columns=self._columns)
        return {**body, **await self._policy(request.policy)}

    async def _policy(self, name: str) -> Mapping[str, Any]:
        """The fields of a request that the policy `name` answers. EngineError where there is none."""
        if name:
            raise EngineError(f"A request has policy={name!r}; {self.url} takes no policy by name.")
        return {}

    async def _completions(
        self, request: Request, body: Mapping[str, Any], answering: Coroutine[Any, Any, list[Any]]
    ) -> list[Completion]:
        """The completions of a request, read from what `answering` returns. Until then it may be aborted."""
        # `answering` has not begun yet, so the request can be aborted as soon as it is sent.
        self._running[request.rid] = _as_list(body["rid"])
        try:
            answers = await answering
        finally:
            del self._running[request.rid]
        for answer in answers:
            self._tally.note(answer["meta_info"])
        read = partial(self._completion, prompt_tokens=len(request.input_ids), policy=request.policy)
        return [await in_turn(partial(read, answer), size=size_of(answer["meta_info"])) for answer in answers]

    def _completion(self, answer: Mapping[str, Any], **known: Any) -> Completion:
        return wire.completion(answer, **known)

    async def _answered(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> list[Any]:
        """What the server answers to one request, a sample each."""
        async with self._slots:
            answer = await self._http.post_bytes(GENERATE, body, timeout_s=self._timeout_s, headers=headers)
            return _as_list(await read_answers(answer))

    async def _end(self, sample_id: str) -> None:
        """Ends one sample, by its id on the wire."""
        await self._control(ABORT, {"rid": sample_id})

    def check(self, request: Request) -> None:
        """EngineError for a request that no engine of this kind can answer, whatever its server can do."""
        self._check_ids(request.input_ids)
        if request.media:
            raise EngineError(f"A request has media={request.media!r}; the engine {self.url} takes no media.")

    def _check_ids(self, ids: Sequence[int]) -> None:
        if not ids:
            raise EngineError("A prompt has no tokens.")
        if self._vocab_size is not None and not 0 <= min(ids) <= max(ids) < self._vocab_size:
            raise EngineError(
                f"A prompt holds token ids from {min(ids)} to {max(ids)}; the model's vocabulary has "
                f"{self._vocab_size} tokens."
            )

    async def _answer(self, path: str, key: str) -> Mapping[str, Any]:
        """The JSON object that GET `path` answers; EngineError where it is none, or has no `key`."""
        answer = await self._http.get(path, timeout_s=self._control_s)
        if not isinstance(answer, dict) or key not in answer:
            raise EngineError(
                f"The server at {self.url} answered {path} with {str(answer)[:SHOWN_CHARS]!r}, expected a "
                f"JSON object with {key!r}: it is no engine of this kind."
            )
        return answer

    async def _control(self, path: str, body: Mapping[str, Any]) -> Any:
        return await self._http.post(path, body, timeout_s=self._control_s)


def _as_list(answer: Any) -> list[Any]:
    return answer if isinstance(answer, list) else [answer]
