"""The processes in which rewards run: what their fork server does once, and what each of them does.

A process sends None, or a Failure, when it has built the rewards. Then it answers group by group. All of
it goes in pickles, each behind its length. It builds after the fork, so that no connection, thread or random
state of a reward is shared.
Imports no torch, unless a reward does.
"""

import io
import pickle
import resource
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rlcore.api.errors import PluginError, UserError
from rlcore.api.part import RewardPart
from rlcore.api.plugin_file import install_plugin_files
from rlcore.api.tokens import Tokenizer, load_tokenizer
from rlcore.rollout.reward_mix import RewardMix
from rlcore.rollout.score_check import Failure, failure_of
from rlcore_machine.connected_process import LENGTH, message


class Imported(NamedTuple):
    """The rewards, imported but not built; `failure`: what every process says instead.

    `tokenizer`: where one of them asks for it. `settings`: of the run.
    """

    parts: Sequence[RewardPart] = ()
    tokenizer: Tokenizer | None = None
    failure: Failure | None = None
    settings: Mapping[str, Any] | None = None


def imported(content: bytes) -> Imported:
    """`content`: four pickles, of the tokenizer's directory, the settings, the plugin files and the parts."""
    file = io.BytesIO(content)
    try:
        tokenizer_path: str | None = pickle.load(file)
        settings: Mapping[str, Any] | None = pickle.load(file)
        # Before the parts are read, whose classes these files may define.
        install_plugin_files(pickle.load(file))
        parts: Sequence[RewardPart] = pickle.load(file)
        tokenizer = None
        if asking := [part.name for part in parts if part.asks_for("tokenizer")]:
            if tokenizer_path is None:
                raise PluginError(f"Reward {asking[0]!r} asks for a tokenizer, and there is none here.")
            tokenizer = load_tokenizer(tokenizer_path)
        return Imported(parts, tokenizer, settings=settings)
    except UserError as error:
        return Imported(failure=Failure(kind="build", reason=str(error)))
    except Exception as error:
        failure = failure_of(error)
        return Imported(failure=replace(failure, reason=f"The rewards cannot be built: {failure.reason}."))


def work(rewards: Imported, memory_gib: float | None, descriptor: int) -> None:
    """Build the rewards, then answer group by group until the connection at `descriptor` is closed."""
    if memory_gib is not None:
        limit = int(memory_gib * (1 << 30))
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))  # what is allocated, not what is mapped
    connection, mix, failure = socket.socket(fileno=descriptor), None, rewards.failure
    try:
        mix = RewardMix(rewards.parts, rewards.tokenizer, rewards.settings) if failure is None else None
    except PluginError as error:
        failure = Failure(kind="build", reason=str(error))
    connection.sendall(message(failure))
    # Buffered: `read` gives as many bytes as it was asked for, except at the end of the connection.
    groups = connection.makefile("rb")
    while mix is not None and (length := groups.read(LENGTH.size)):
        connection.sendall(message(mix.score(pickle.loads(groups.read(*LENGTH.unpack(length))))))
