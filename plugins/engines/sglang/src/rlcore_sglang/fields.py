"""`--sglang.<field>`: checked against ServerArgs before any process starts, and spelled as sglang's flags."""

import importlib.resources
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlcore import ConfigError, MissingEngineError, did_you_mean, flag_name
from rlcore_sglang import dump_fields
from rlcore_sglang.adapters import PATHS, STRICT

OLDEST, NEWEST_EXCLUDED = (0, 5, 12), (0, 6)
ADAPTER_TENSORS = (0, 5, 18)
"""The first version that takes an adapter over HTTP, with SHA-256 of its tensors."""
TABLE = "sglang"
GROUPS = "engine_group."
"""Begins the table of a group of engines, whose fields are those of all engines and its own."""
CONTEXT = "context_length"
SUPPORTED = "sglang>=0.5.12,<0.6"
ASK_LIMIT_S = 180.0

OWNED = {
    "model_path": "--model",
    "tokenizer_path": "--model",
    "dtype": "--dtype",
    "random_seed": "--seed",
    CONTEXT: "--max-prompt-tokens and --max-response-tokens",
    "host": "rlcore, where the run's placement needs it",
    "port": "--engine.port",
    "api_key": "rlcore: the run's token",
    "admin_api_key": "rlcore: the run's token",
    "weight_version": "rlcore: the number of the publication",
    "enable_lora": "--lora.publish adapter",
    "node_rank": "rlcore, which places the --sglang.nnodes of an engine",
    "dist_init_addr": "rlcore, which places the --sglang.nnodes of an engine",
    "config": "--sglang.<field> or the table [sglang] of the TOML file",
    "help": "`python -m sglang.launch_server --help`",
}
"""Fields that are not the user's to set here, and what sets them."""


@dataclass(frozen=True)
class ServerFields:
    """What one version of sglang takes: type of each field, and flags that are not spelled as the name."""

    version: str
    types: Mapping[str, str]
    options: Mapping[str, str]


def installed_version(python: str | None, env: Mapping[str, str]) -> str | None:
    """sglang's version as the interpreter sees it, None where it has none. ConfigError: cannot run it."""
    try:
        answer = _ask(python, "version", env)
    except OSError as error:
        raise ConfigError(f"--engine.python {python} cannot be run: {error.strerror}.") from error
    return None if answer is None else str(answer["version"])


def require_version(python: str | None, env: Mapping[str, str]) -> str:
    """The installed version; MissingEngineError: there is none, ConfigError: it is not supported."""
    version = installed_version(python, env)
    if version is None:
        raise MissingEngineError(
            f"sglang is not installed for {python or sys.executable}: on a GPU machine "
            f"`pip install '{SUPPORTED}'` installs it; without a GPU "
            "`scripts/sglang_cpu_venv.sh .venv-sglang` does, for `--engine.python .venv-sglang/bin/python`; "
            "`--engine local` needs none."
        )
    if not OLDEST <= numbers_of(version) < NEWEST_EXCLUDED:
        raise ConfigError(
            f"sglang {version} is installed for {python or sys.executable}; supported is {SUPPORTED}."
        )
    return version


def numbers_of(version: str) -> tuple[int, ...]:
    """The first three numbers of a version, to compare it."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def server_fields(python: str | None, env: Mapping[str, str]) -> ServerFields:
    """The fields of the installed version; where none is installed, of the newest that rlcore knows."""
    known = json.loads(importlib.resources.files("rlcore_sglang").joinpath("fields.json").read_text())
    version = installed_version(python, env)
    if version is None:
        version = max(known, key=lambda text: [int(number) for number in text.split(".")])
    if version in known:
        return ServerFields(version, known[version]["fields"], known[version]["options"])
    answer = _ask(python, "fields", env)
    if answer is None:
        raise ConfigError(f"sglang {version} of {python or sys.executable} cannot be imported.")
    return ServerFields(version, answer["fields"], answer["options"])


def check_takes_adapters(known: ServerFields, publish: str) -> None:
    """ConfigError where this version of sglang takes no adapter, or not by `publish`."""
    found = f"found adapter, but sglang {known.version}"
    if STRICT not in known.types:
        raise ConfigError(
            f"--lora.publish: {found} may leave parts of one out: it has no {STRICT}; install a newer one."
        )
    if publish == "tensor" and numbers_of(known.version) < ADAPTER_TENSORS:
        raise ConfigError(
            f"--lora.publish: {found} takes none by --engine.publish tensor; take disk, or sglang>=0.5.18."
        )


def check_fields(fields: Mapping[str, Any], known: ServerFields, *, table: str = TABLE) -> dict[str, Any]:
    """`fields` by ServerArgs' names and types. ConfigError names the flag, the value and what is expected.

    Names may have dashes; values may be text as from a command line. `table`: where the user gives them; that
    of a frozen model may say its context, which the run's lengths say otherwise.
    """
    return {name: _checked(name, value, known, table) for name, value in _by_name(fields).items()}


def arguments(fields: Mapping[str, Any], known: ServerFields) -> list[str]:
    """Checked `fields` as flags of `sglang.launch_server`."""
    argv: list[str] = []
    for name, value in fields.items():
        flag = known.options.get(name, "--" + name.replace("_", "-"))
        kind = known.types[name]
        if kind.startswith("bool"):
            off = [flag.replace("--", "--no-", 1)] if kind == "bool|no" else []
            argv += [flag] if value else off
        elif isinstance(value, list):
            argv += [flag, *map(str, value)]
        else:
            argv += [flag, str(value)]
    return argv


def number_of(fields: Mapping[str, Any], *names: str) -> int:
    """The `--sglang.<field>`, however it is spelled, that is called by one of `names`; 1 if none is."""
    given = _by_name(fields)
    return next((int(given[name]) for name in names if name in given), 1)


def stages_of(fields: Mapping[str, Any]) -> int:
    """Stages of the pipeline of one replica of an engine's model."""
    return number_of(fields, "pp_size", "pipeline_parallel_size")


def tensor_ranks_of(fields: Mapping[str, Any]) -> int:
    """The ranks that divide each layer."""
    return number_of(fields, "tp_size", "tensor_parallel_size")


def ranks_of(fields: Mapping[str, Any]) -> int:
    """The devices of one replica of an engine's model."""
    return tensor_ranks_of(fields) * stages_of(fields)


def check_layout(fields: Mapping[str, Any], hf_config: Mapping[str, Any]) -> None:
    """ConfigError where the ranks of an engine cannot share the attention heads of the model.

    SGLang ends on a GPU as it loads such a model. On a CPU it pads the heads.
    """
    tensor, heads = tensor_ranks_of(fields), hf_config.get("num_attention_heads")
    parts = number_of(fields, "dp_size") if _divides_attention(fields) else 1
    if isinstance(heads, int) and heads % max(1, tensor // parts):
        by = f" in {parts} groups (--sglang.dp-size)" if parts > 1 else ""
        raise ConfigError(
            f"--sglang.tp-size: found {tensor}{by}, but an engine on GPUs divides the attention heads of the "
            f"model evenly; expected a divisor of {heads}."
        )


def replicas_of(fields: Mapping[str, Any]) -> int:
    """Replicas of the model in one engine, each with ranks of its own.

    With attention that is divided by data they are groups of the ranks that there are.
    """
    return 1 if _divides_attention(fields) else number_of(fields, "dp_size")


def _divides_attention(fields: Mapping[str, Any]) -> bool:
    """Whether groups of ranks hold sequences of their own."""
    return str(_by_name(fields).get("enable_dp_attention", False)).lower() == "true"


def nodes_of(fields: Mapping[str, Any]) -> int:
    """Hosts, or parts of one, that share an engine's ranks, with a server process on each."""
    nodes, ranks = number_of(fields, "nnodes"), ranks_of(fields)
    if nodes < 1 or ranks % nodes:
        raise ConfigError(
            f"--sglang.nnodes: found {nodes}, which does not divide the {ranks} ranks of an engine, its "
            "--sglang.tp-size times its --sglang.pp-size."
        )
    return nodes


def _by_name(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("-", "_"): value for name, value in fields.items()}


def _checked(name: str, value: Any, known: ServerFields, table: str) -> Any:
    flag = flag_name(f"{table}.{name}")
    if name == "nnodes" and table != TABLE and not table.startswith(GROUPS):
        raise ConfigError(f"{flag}: a frozen model is served on one host; leave it out.")
    if name == PATHS and table != TABLE and not table.startswith(GROUPS):
        raise ConfigError(f"{flag}: a frozen model is served without adapters; leave it out.")
    if name in OWNED and (name != CONTEXT or table == TABLE):
        raise ConfigError(f"{flag} is not set here, but by {OWNED[name]}.")
    if name not in known.types:
        guess = did_you_mean(name, set(known.types) - set(OWNED))
        raise ConfigError(f"{flag} is no setting of sglang {known.version}.{guess}")
    kind = known.types[name]
    try:
        return _converted(value, kind)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{flag} takes a value of type {kind.partition('|')[0]}, not {value!r}.") from error


def _converted(value: Any, kind: str) -> Any:
    if kind.startswith("list["):
        items: Sequence[Any] = value.split(",") if isinstance(value, str) else value
        return [_converted(item, kind[5:-1]) for item in items]
    if kind == "json":
        return json.dumps(json.loads(value) if isinstance(value, str) else value)
    if kind.startswith("bool"):
        return (
            {"true": True, "false": False}[str(value).lower()]
            if str(value).lower() in ("true", "false")
            else _no()
        )
    if isinstance(value, bool | dict | list):
        return _no()
    if kind == "int":
        return int(str(value))
    return float(value) if kind == "float" else str(value)


def _no() -> Any:
    raise ValueError


def _ask(python: str | None, what: str, env: Mapping[str, str]) -> Any:
    """The last line that `dump_fields` prints under `python`, as JSON; None where it fails."""
    command = [python or sys.executable, "-P", dump_fields.__file__, what]
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=ASK_LIMIT_S, check=False
    )
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
