"""Interrupted requests: what was sampled before, joined with what is sampled afterwards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rlcore import Completion, Request, Span

Decode = Callable[[Sequence[int]], str]

RequestKey = tuple[str, int, tuple[int, ...], int, str]
"""The identity of a request: rid, seed, prompt, number of samples and policy."""

INTERRUPTED = "abort"
"""The finish reason of a completion that will be continued."""


@dataclass(frozen=True, kw_only=True)
class Partial:
    """A request of an unfinished group, with the completions so far, one for each of its samples."""

    request: Request
    completions: tuple[Completion, ...]

    @property
    def key(self) -> RequestKey:
        """The key of its request."""
        return request_key(self.request)

    @property
    def versions(self) -> frozenset[int]:
        """The weight versions of the tokens."""
        sampled = [completion for completion in self.completions if completion.token_ids]
        return frozenset(span.version for completion in sampled for span in completion.spans)

    @property
    def tokens(self) -> int:
        """Sampled tokens."""
        return sum(len(completion.token_ids) for completion in self.completions)


def request_key(request: Request) -> RequestKey:
    """The identity by which a generator that runs again finds the answers to a request that it repeats."""
    return request.rid, request.seed, tuple(request.input_ids), request.n, request.policy


def without_unread_text(completion: Completion) -> Completion:
    """`completion`, without its text if it was interrupted. The whole text is decoded when it ends."""
    return replace(completion, text="") if completion.finish_reason == INTERRUPTED else completion


def join(first: Completion, rest: Completion, decode: Decode, stop: Sequence[str] = ()) -> Completion:
    """The interrupted `first` and its continuation `rest` as one completion.

    The engine looked for the strings `stop` in `rest` only. So a stop string that begins in `first` and ends
    in `rest` is found here.
    """
    cut = len(first.token_ids)
    ids = first.token_ids + rest.token_ids
    end = _end_of_stop(ids, cut, decode, stop)
    if end is not None:
        text = decode(ids[:end])
        ids_left, log_probs_left = rest.token_ids[: end - cut], rest.log_probs[: end - cut]
        rest = replace(rest, token_ids=ids_left, log_probs=log_probs_left, finish_reason="stop")
    else:
        trimmed = len(decode(rest.token_ids)) - len(rest.text)
        text = decode(ids)
        text = text[: len(text) - max(0, trimmed)]
    return replace(
        rest,
        token_ids=first.token_ids + rest.token_ids,
        log_probs=first.log_probs + rest.log_probs,
        text=text,
        spans=_joined_spans(first, rest),
        prompt_tokens=first.prompt_tokens,
        # the continuation took in all that came before it
        engine_columns=(rest if rest.token_ids else first).engine_columns,
    )


def _end_of_stop(ids: Sequence[int], cut: int, decode: Decode, stop: Sequence[str]) -> int | None:
    """The number of tokens up to a stop string that begins before token `cut` and ends after it."""
    if not stop or cut == 0:
        return None
    # A token has one byte of text at least, unless it is special: so many tokens hold any stop string.
    window = max(len(string.encode()) for string in stop) + 1
    for end in range(cut + 1, min(len(ids), cut + window) + 1):
        tail = decode(ids[max(0, cut - window) : end])
        if any(string in tail for string in stop):
            return end
    return None


def _joined_spans(first: Completion, rest: Completion) -> tuple[Span, ...]:
    cut = len(first.token_ids)
    spans = [span for span in first.spans if span.start < cut]
    for span in rest.spans:
        if not spans or spans[-1].version != span.version:
            spans.append(replace(span, start=span.start + cut))
    return tuple(spans)
