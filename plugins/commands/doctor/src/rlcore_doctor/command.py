"""`rlcore doctor`: whether this machine has what a run needs, and what to do where it has not."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from rlcore import Config, ConfigError, Diagnosis, Kind, PluginError, RlcoreError, did_you_mean, flag_name
from rlcore_cli.program import Program, require

FAILED = 1
CHOSEN = (Kind.ENGINE, Kind.TRAINER, Kind.CLUSTER)
"""Kinds of which every run has one."""


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--engine", metavar="NAME", help="Look at what this engine needs.  [the default one]")
@click.option("--trainer", metavar="NAME", help="Look at what this trainer needs.  [the default one]")
@click.option("--cluster", metavar="NAME", help="Look at what this cluster needs.  [the default one]")
@click.option(
    "--lock",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Name the packages that differ from the versions in FILE, such as requirements-gpu.txt.",
)
@click.argument("settings", nargs=-1, type=click.UNPROCESSED, metavar="[--KIND.FIELD VALUE]…")
@click.pass_obj
def doctor(
    program: Program,
    /,
    as_json: bool,
    engine: str | None,
    trainer: str | None,
    cluster: str | None,
    lock: Path | None,
    settings: tuple[str, ...],
) -> None:
    """Say whether this machine has what a run needs: each line is ok, or says what to do.

    Give settings of engine, trainer and cluster as in `rlcore train`: --engine.python PATH. The exit code is
    1 if something would stop a run.
    """
    from rlcore_doctor import machine
    from rlcore_doctor.lock import differences, requirements

    given = _given(settings)
    locked = differences(lock, requirements(lock)) if lock else ()
    chosen = {Kind.ENGINE: engine, Kind.TRAINER: trainer, Kind.CLUSTER: cluster}
    lines = []
    for line in (*_lines(machine.CHECKS), *locked, *_of_plugins(program), *_of_parts(program, chosen, given)):
        lines.append(line)
        if not as_json:
            click.echo(_line(line))
    stopped = any(diagnosis.remedy and diagnosis.stops for diagnosis in lines)
    if as_json:
        click.echo(
            json.dumps({"ok": not stopped, "lines": [_as_json(diagnosis) for diagnosis in lines]}, indent=1)
        )
    if stopped:
        click.get_current_context().exit(FAILED)


def _lines(checks: Iterable[Any]) -> Iterator[Diagnosis]:
    for check in checks:
        yield from check()


def _mark(diagnosis: Diagnosis) -> str:
    return "ok" if not diagnosis.remedy else "STOP" if diagnosis.stops else "note"


def _as_json(diagnosis: Diagnosis) -> dict[str, str]:
    return {
        "mark": _mark(diagnosis),
        "what": diagnosis.what,
        "found": diagnosis.found,
        "remedy": diagnosis.remedy,
    }


def _line(diagnosis: Diagnosis) -> str:
    remedy = f". {diagnosis.remedy}" if diagnosis.remedy else ""
    return f"{_mark(diagnosis):<5} {diagnosis.what}: {diagnosis.found}{remedy}"


# --- plugins -----------------------------------------------------------------------------------------------


def _of_plugins(program: Program) -> Iterator[Diagnosis]:
    """Those that are broken, commands that are not there, and names that two of them offer."""
    plugins = program.plugins
    for plugin in plugins.broken:
        yield Diagnosis(
            what=f"plugin {plugin.name}",
            found=f"{plugin.dist} {plugin.version} is broken: {plugin.error}",
            remedy=f"Mend or uninstall it; -p no:{plugin.name} leaves it out.",
            stops=False,
        )
    for info, command in program.commands:
        try:
            require(command, info)
        except PluginError as error:
            yield _faulty(f"command {command.name}", error, must=False)
    try:
        registry = plugins.registry
    except PluginError as error:
        yield Diagnosis(what="plugins", found="a name is taken twice", remedy=str(error))
        return
    for clash in registry.clashes:
        yield Diagnosis(what="plugins", found="a name is taken twice", remedy=f"The {clash}", stops=False)
    yield Diagnosis(what="plugins", found=f"{len(plugins.infos)} with {len(registry.entries())} parts")


def _of_parts(
    program: Program, chosen: Mapping[Kind, str | None], given: Mapping[str, Mapping[str, str]]
) -> Iterator[Diagnosis]:
    """What the parts say themselves: those that are chosen or default must work, others would only be missed.

    A part whose settings have no defaults is asked where it is chosen; so is a cluster, which may take
    seconds.
    """
    try:
        registry, asked = program.plugins.registry, list[tuple[str, str]]()
    except PluginError:
        return  # `_of_plugins` has told
    for kind in CHOSEN:
        wanted = chosen[kind]
        try:
            entry = registry.find(kind, wanted, f"--{kind}") if wanted else registry.default(kind)
        except PluginError as error:
            if wanted:
                raise
            yield Diagnosis(what=kind.value, found="the default is offered twice", remedy=str(error))
            continue
        if entry is None:
            remedy = f"Choose one: --{kind} NAME, {registry.offer(kind)}."
            yield Diagnosis(what=kind.value, found="no plugin offers one by default", remedy=remedy)
            continue
        asked.append((kind, entry.record.name))
        try:
            config_class = entry.config
        except PluginError as error:
            yield _faulty(f"{kind} {entry.record.name}", error, must=True)
            continue
        config = _config(kind, config_class, given.get(kind.value, {}))
        yield from _diagnosed(f"{kind} {entry.record.name}", config, must=True)
    for entry in (*registry.entries(), *(adapter.entry for adapter in program.plugins.adapters)):
        if (entry.kind, entry.record.name) in asked or entry.kind is Kind.ALGORITHM:
            continue
        try:
            config_class = entry.config
        except PluginError as error:
            yield _faulty(f"{entry.kind} {entry.record.name}", error, must=False)
            continue
        if entry.kind is Kind.CLUSTER or config_class.diagnose is Config.diagnose:
            continue
        if not any(field.is_required() for field in config_class.model_fields.values()):
            yield from _diagnosed(f"{entry.kind} {entry.record.name}", config_class(), must=False)


def _faulty(what: str, error: PluginError, *, must: bool) -> Diagnosis:
    """A part whose settings cannot be imported, or a command that is not there."""
    remedy = "Mend or uninstall its plugin."
    return Diagnosis(what=what, found=str(error).removesuffix("."), remedy=remedy, stops=must)


def _diagnosed(whose: str, config: Config, *, must: bool) -> Iterator[Diagnosis]:
    try:
        for diagnosis in config.diagnose():
            yield replace(diagnosis, what=f"{whose}, {diagnosis.what}", stops=diagnosis.stops and must)
    except RlcoreError as error:
        yield Diagnosis(what=whose, found="cannot be used here", remedy=str(error), stops=must)
    except Exception as error:
        problem = f"cannot say what it needs: {type(error).__name__}: {error}"
        yield Diagnosis(what=whose, found=problem, remedy="Tell its authors.", stops=False)


# --- settings ----------------------------------------------------------------------------------------------


def _given(words: Sequence[str]) -> dict[str, dict[str, str]]:
    """Kind → field → text, of `--KIND.FIELD VALUE` and `--KIND.FIELD=VALUE`. Raises `ConfigError`."""
    waiting, by_kind = list(words), dict[str, dict[str, str]]()
    while waiting:
        word, equals, value = waiting.pop(0).partition("=")
        kind, dot, field = word.removeprefix("--").replace("-", "_").partition(".")
        if not (word.startswith("--") and dot) or kind not in [chosen.value for chosen in CHOSEN]:
            flags = ["--json", "--engine", "--trainer", "--cluster", "--lock"]
            near = did_you_mean(word, flags)
            raise ConfigError(f"doctor: found {word!r}, expected {', '.join(flags)} or --engine.FIELD.{near}")
        if not equals and not waiting:
            raise ConfigError(f"doctor: {word} needs a value.")
        by_kind.setdefault(kind, {})[field] = value if equals else waiting.pop(0)
    return by_kind


def _config(kind: Kind, config: type[Config], given: Mapping[str, str]) -> Config:
    for name in given:
        if name not in config.model_fields:
            flags = [flag_name(f"{kind}.{field}") for field in config.model_fields]
            flag = flag_name(f"{kind}.{name}")
            raise ConfigError(f"{flag} is unknown.{did_you_mean(flag, flags)}")
    try:
        return config.model_validate_strings(dict(given))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        flag = flag_name(f"{kind}.{'.'.join(map(str, first['loc']))}")
        raise ConfigError(f"{flag}: {first['msg']}.") from error
