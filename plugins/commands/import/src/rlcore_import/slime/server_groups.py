"""`--sglang-config`: slime's YAML of server groups, as engine groups."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rlcore import ConfigError
from rlcore_import.run import Settings
from rlcore_import.slime.run import Run
from rlcore_import.table import Table
from rlcore_import.translation import Outcome, impossible

SGLANG_CONFIG = "sglang-config"
HALVES = ("prefill", "decode")
KINDS = ("regular", *HALVES)


@dataclass(frozen=True)
class _Group:
    """One group of servers: `gpus` in all, `each` of them for one server. `own`: its fields of ServerArgs."""

    kind: str
    gpus: int
    each: int
    own: Mapping[str, Any] = field(default_factory=dict)


def engine_groups(run: Run) -> Outcome | Settings:
    """Reads the file that the run names, and says what slime has beside the groups. ConfigError."""
    path = run.text(SGLANG_CONFIG)
    if path not in run.files and not Path(path).is_file():
        return impossible(
            f"{path} is not here: bring it, or write its server groups as --engine-group and its frozen "
            "models as --frozen"
        )
    models = _models(path, run.files)
    if len(models) > 1:
        others = ", ".join(str(model.get("name")) for model in models[1:])
        return impossible(f"it serves {others} too: write models that are not trained as --frozen")
    groups = [_group(group, models[0], run, path) for group in models[0].get("server_groups") or ()]
    kinds = Counter(group.kind for group in groups)
    if not groups or not set(kinds) <= set(KINDS):
        listed = ", ".join(kinds) or "none"
        return impossible(f"found server groups of the kinds {listed}, expected {', '.join(KINDS)}")
    if len({group.each for group in groups}) > 1:
        return impossible("its groups have servers of several sizes; those of --engine-group have one")
    return _settings(groups, run)


def _models(path: str, written: Mapping[str, str]) -> Sequence[Mapping[str, Any]]:
    """What the file serves; `written`: by the script, where it does so. ConfigError."""
    try:
        content = yaml.safe_load(written[path] if path in written else Path(path).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--sglang-config {path}: found no YAML ({error}).".replace("\n", " ")) from error
    models = content.get("sglang") if isinstance(content, Mapping) else None
    if not isinstance(models, list) or not models or not all(isinstance(model, Mapping) for model in models):
        raise ConfigError(f"--sglang-config {path}: expected a list of models under `sglang`.")
    return models


def _group(given: Any, model: Mapping[str, Any], run: Run, path: str) -> _Group:
    """ConfigError where its GPUs are not a number of servers."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"--sglang-config {path}: found {given!r}, expected a server group.")
    default = model.get("num_gpus_per_engine", run.number("rollout-num-gpus-per-engine", 1))
    gpus, each = given.get("num_gpus"), given.get("num_gpus_per_engine", default)
    if not (isinstance(gpus, int) and isinstance(each, int) and 0 < each <= gpus and gpus % each == 0):
        raise ConfigError(
            f"--sglang-config {path}: found {gpus} GPUs for servers of {each}, expected a multiple of them."
        )
    return _Group(str(given.get("worker_type", "regular")), gpus, each, given.get("overrides") or {})


def _settings(groups: Sequence[_Group], run: Run) -> Settings:
    names, table = _names(groups), Table.of("slime")
    settings: dict[str, Any] = {"engines": None, "engine_group": []}
    for name, group in zip(names, groups, strict=True):
        settings["engine_group"].append(f"{name}={group.gpus // group.each}")
        if group.kind in HALVES:
            settings |= {f"engine_group.{name}.disaggregation_mode": group.kind, "router": "cache_aware"}
        settings |= {f"engine_group.{name}.{_field(own, table)}": value for own, value in group.own.items()}
    stages, node = run.number("sglang-pp-size", 1), run.number("actor-num-gpus-per-node", 8)
    each = groups[0].each
    settings |= {"sglang.tp_size": each // stages} if each > stages else {}
    return settings | ({"sglang.nnodes": each // node} if each > node else {})


def _names(groups: Iterable[_Group]) -> list[str]:
    """The kind of each, numbered where there are several."""
    kinds = [group.kind for group in groups]
    numbered = [f"{kind}{1 + kinds[:place].count(kind)}" for place, kind in enumerate(kinds)]
    return [name if kinds.count(kind) > 1 else kind for name, kind in zip(numbered, kinds, strict=True)]


def _field(name: str, table: Table) -> str:
    """Its name in newer releases of SGLang, where `flags.toml` has one."""
    rule = table.find(f"--sglang-{name.replace('_', '-')}")
    known = rule.to.removeprefix("sglang.") if rule is not None and not rule.by else ""
    return known or name.replace("-", "_")
