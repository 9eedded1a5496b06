"""The process in which a reward runs: started by `RewardPool` with two descriptors, a socket and a leash.

Talks with the pool over a private socket pair: frames of 8 bytes length and a pickle. First frame in:
the contents of the plugin files; second: the `Part`; then one frame a group. Each is answered by one frame.
Imports no torch, unless the reward does.
"""

import fcntl
import math
import os
import pickle
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

from rlcore.plugins.files import install
from rlcore.types import Sample, Score

_LENGTH = struct.Struct("!Q")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why there is no score. `kind` groups failures of one cause; `trace` may be empty."""

    kind: str
    reason: str
    trace: str = ""


Outcome = Score | Failure
"""What a sample got."""


def send_frame(connection: socket.socket, content: object) -> None:
    """One pickled frame. Raises OSError where the other side is gone."""
    data = pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive_frame(connection: socket.socket) -> Any:
    """The next frame, unpickled: only ever read from the other end of a private pair. EOFError at its end."""
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    return pickle.loads(_receive_exactly(connection, length))


def _receive_exactly(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, received = memoryview(data), 0
    while received < size:
        count = connection.recv_into(view[received:])
        if not count:
            raise EOFError
        received += count
    return data


def judge(reward: Any, samples: Sequence[Sample]) -> list[Outcome]:
    """What the reward says of each sample; what it says wrongly, or not at all, is a Failure."""
    try:
        scores = list(reward.score(samples))
    except Exception as error:
        return [_failure(error)] * len(samples)
    if len(scores) != len(samples):
        reason = f"the reward gave {len(scores)} scores for {len(samples)} samples"
        return [Failure(kind="count", reason=reason)] * len(samples)
    return [_checked(score, sample) for score, sample in zip(scores, samples, strict=True)]


def _failure(error: Exception) -> Failure:
    name = type(error).__name__
    reason = f"{name}: {error}" if str(error) else name
    return Failure(kind=name, reason=reason, trace="".join(traceback.format_exception(error)))


def _checked(score: object, sample: Sample) -> Outcome:
    """The score in plain floats, or what is wrong with it."""
    if not isinstance(score, Score):
        return Failure(kind="type", reason=f"the reward gave a {type(score).__name__}, not a Score")
    tokens = score.per_token
    if tokens is not None and len(tokens) != len(sample.response_ids):
        reason = f"per_token has {len(tokens)} values for {len(sample.response_ids)} response tokens"
        return Failure(kind="per_token", reason=reason)
    lost = [place for place, token in enumerate(tokens or ()) if token and not sample.loss_mask[place]]
    if lost:
        reason = f"per_token has a value for response token {lost[0]}, which is masked: it would be lost"
        return Failure(kind="masked", reason=reason)
    try:
        return Score(
            value=_finite(score.value, "value"),
            per_token=None if tokens is None else tuple(_finite(token, "per_token") for token in tokens),
            parts={str(name): _finite(part, f"part {name!r}") for name, part in score.parts.items()},
        )
    except ValueError as error:
        return Failure(kind="number", reason=str(error))


def _finite(number: object, name: str) -> float:
    # `float` comes first because the check of a protocol is slow.
    if not isinstance(number, float | SupportsFloat) or not math.isfinite(number):
        raise ValueError(f"the {name} of a score is {number!r}, which is no finite number")
    return float(number)


def _tie_to_parent(leash: int) -> None:
    """Lets the kernel kill this process group when the parent, which holds the leash's other end, is gone.

    A thread could not: a reward may hold the interpreter's lock for ever (a regular expression does).
    """
    fcntl.fcntl(leash, fcntl.F_SETOWN, -os.getpgrp())
    if sys.platform == "linux":  # elsewhere the signal is SIGIO
        fcntl.fcntl(leash, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(leash, fcntl.F_SETFL, fcntl.fcntl(leash, fcntl.F_GETFL) | os.O_ASYNC)


def _build(connection: socket.socket) -> Any:
    install(receive_frame(connection))
    return receive_frame(connection).build()


def main() -> None:
    """Serves until the pool closes the connection. Arguments: the descriptors of socket and leash."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    _tie_to_parent(int(sys.argv[2]))
    try:
        reward = _build(connection)
    except Exception as error:
        send_frame(connection, _failure(error))
        return
    send_frame(connection, None)
    while True:
        try:
            samples = receive_frame(connection)
        except EOFError:
            return
        send_frame(connection, judge(reward, samples))
