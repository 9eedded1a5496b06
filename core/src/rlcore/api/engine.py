"""Kind `engine`: what its servers are started with. Its base class is `rlcore.engines.engine.Engine`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlcore.api.overlay import Overlay

TOKEN_VARIABLE = "RLCORE_ENGINE_TOKEN"
"""The environment variable in which a server finds the token of requests, which no file may hold."""


@dataclass(frozen=True, kw_only=True)
class EngineLaunch:
    """One server that a run wants to start."""

    model_path: str
    """A local Hugging Face directory: config.json, tokenizer, safetensors."""
    host: str
    """The address to listen on, and no other."""
    port: int
    """The port to listen on."""
    token: str = field(repr=False)
    """Every request brings it (`Authorization: Bearer …`), and the server refuses others. Keep it out of
    argv, which other users can read: `TOKEN_VARIABLE` is for it.
    """
    dtype: str
    """The run's, "fp32" or "bf16"."""
    context_length: int | None
    """Most tokens of prompt plus response; None: the model's own limit."""
    seed: int
    """The seed of this server; each engine of a run has another one."""
    weights_dir: str | None
    """The folder of publications; None: there are none."""
    log_path: str
    """The file that gets what the server prints. rlcore writes it."""
    threads: int = 1
    """Those of a train worker, for an engine that computes on the same CPUs."""
    shares_gpu: bool = False
    """Whether a trainer uses the same GPU."""
    classifier: bool = False
    """Whether the model is a sequence classifier, such as a reward model."""
    overlays: Mapping[str, Overlay] = field(default_factory=dict)
    """What publications carry beside the model, which stays as it is: by policy (`Request.policy`), whose
    name is empty for the run's own. Empty: they carry whole weights.
    """
    node: int = 0
    """The number of this host, of an engine on several."""
    meeting: str | None = None
    """Where the processes of an engine on several hosts meet: HOST:PORT of the first."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The server's own, as the user gave them in `table`. A flag's value may still be a text."""
    table: str = ""
    """The user's table of `fields`, for sentences."""


@dataclass(frozen=True, kw_only=True)
class ServerCommand:
    """How a server is started: in a process group of its own, which rlcore later ends as a whole."""

    argv: tuple[str, ...]
    """The program and its arguments."""
    env: Mapping[str, str] = field(repr=False)
    """What is added to the environment."""
