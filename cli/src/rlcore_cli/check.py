"""`rlcore plugins check NAME`: the conformance suite of its kind, run on an installed plugin."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from rlcore.api.config import flag_name
from rlcore.api.errors import ConfigError, PluginError, did_you_mean
from rlcore.api.records import LIST_KINDS, Algorithm, Kind, ModelFamily
from rlcore.api.types import Prompt
from rlcore.config.layers import Layer, Setting
from rlcore.plugins.registry import Entry, Registry
from rlcore_cli import options
from rlcore_cli.flags import Flag, of_config
from rlcore_cli.naming import Offer, offers_called
from rlcore_cli.program import Program, loaded
from rlcore_cli.resolve import resolve_part
from rlcore_cli.select import select
from rlcore_cli.train import program_of
from rlcore_testing.conformance import Finding, Subject

COMMAND = "plugins check"
FAILED = 1
QWEN3 = "Qwen3ForCausalLM"
"""The architecture of the models that suites make."""
SEEN = 4
"""Prompts of `--data` or `--task` that a part is asked."""
_PROMPT_FLAGS = ("data", "task")
_MARKS = {"ok": "ok     ", "fails": "FAILS  ", "skipped": "-      "}


class CheckCommand(click.Command):
    """Reads NAME first, then makes a command with the flags of what is called so."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of that command. Raises `UserError` for a name that does not exist."""
        program = program_of(parent)
        words = args[:1] if args and not args[0].startswith("-") else []
        names = words or [file.name for file in program.plugins.files]
        offers = [offer for name in names for offer in offers_called(program, name, COMMAND)]
        command = options.SelectedCommand(
            _options(offers, program.plugins.registry, args),
            run=lambda flags, params: _run(program, offers, flags, params),
            unknown=lambda name, layer, names: _unknown(name, layer, offers, names),
            passed=(),
            name=self.name,
            help=self.help,
        )
        return command.make_context(info_name, args, parent=parent, **extra)


check_command = CheckCommand(
    "check",
    help="Test a part, or all parts of a plugin, by the conformance suite of its kind. Settings of the "
    "part are flags, as in `rlcore train`. The exit code is 1 if a property fails.",
)


def _options(offers: Iterable[Offer], registry: Registry, args: Sequence[str]) -> Iterator[click.Parameter]:
    group: dict[str, Any] = {"group": options.COMMAND}
    yield click.Argument(["name"], required=False)
    yield options.GroupedOption(["--json", "as_json"], is_flag=True, help="Print JSON.", **group)
    yield options.GroupedOption(
        ["--kind"],
        metavar="KIND",
        help="Test only the part of this kind, if several are called NAME.",
        **group,
    )
    for name, text in (("data", "prompts of a file"), ("task", "prompts of a task")):
        yield options.SettingOption(
            name, f"--{name}", group=options.COMMAND, help=f"Use the {text} instead of the suite's own."
        )
    source = _source(registry, args)
    entries = [offer.entry for offer in offers if offer.entry is not None] + ([source] if source else [])
    for flag in _flags(entries):
        yield from options.setting(flag)


def _flags(entries: Iterable[Entry]) -> Iterable[Flag]:
    """The flags of each part. Of two parts with one flag, the first one's counts."""
    flags: dict[str, Flag] = {}
    for entry in entries:
        if not isinstance(entry.record, Algorithm):
            heading = f"{entry.kind}: {entry.record.name}"
            for flag in of_config(entry.config, table_of(entry), heading, {}, common=True):
                flags.setdefault(flag.name, flag)
    return flags.values()


def table_of(entry: Entry) -> str:
    """The table of a part's settings."""
    return f"{entry.kind}.{entry.record.name}" if entry.kind in LIST_KINDS else str(entry.kind)


def _unknown(name: str, layer: Layer, offers: Sequence[Offer], names: Iterable[str]) -> str:
    settings = [flag.name for flag in _flags([offer.entry for offer in offers if offer.entry is not None])]
    hint = did_you_mean(flag_name(name), [*map(flag_name, [*settings, *_PROMPT_FLAGS]), *names])
    return f"{layer.at(name)} is unknown.{hint}"


# --- running ---------------------------------------------------------------------------------------------


def _run(program: Program, offers: Sequence[Offer], flags: Layer, params: options.Params) -> None:
    if not offers:
        raise ConfigError(f"{COMMAND}: expected the name of a part or of a plugin, or --plugin FILE.")
    if params["kind"]:
        kinds = sorted({offer.kind for offer in offers})
        offers = [offer for offer in offers if offer.kind == params["kind"].replace("-", "_")]
        if not offers:
            raise ConfigError(f"--kind: found {params['kind']!r}, expected {' or '.join(kinds)}.")
    settings = {name: Setting(value=value, layer=flags) for name, value in flags.values.items()}
    registry = program.plugins.registry
    prompts = _prompts(registry, flags)
    subjects = [(offer, _subject(offer, program, settings, prompts)) for offer in offers]
    rows, failed = [], 0
    for offer, subject in subjects:
        findings = _check(offer, subject, quiet=params["as_json"])
        failed += sum(finding.outcome == "fails" for finding in findings)
        rows.append(_row(offer, findings))
    if params["as_json"]:
        click.echo(json.dumps({"checked": rows}, indent=2))
    if failed:
        click.get_current_context().exit(FAILED)


def _subject(
    offer: Offer, program: Program, settings: Mapping[str, Setting], prompts: tuple[Prompt, ...]
) -> Subject:
    from rlcore_testing.conformance import Subject

    registry = program.plugins.registry
    if offer.command is not None:
        return Subject(record=loaded(offer.command), context=program)
    assert offer.entry is not None, "adapters have no suite"
    if isinstance(offer.entry.record, Algorithm):
        return Subject(record=offer.entry.record, registry=registry)
    return Subject(
        record=offer.entry.record,
        part=resolve_part(offer.entry, settings, table_of(offer.entry)),
        prompts=prompts,
        registry=registry,
        bridge=_bridge(registry, offer.name) if offer.entry.kind is Kind.TRAINER else None,
    )


def _check(offer: Offer, subject: Subject, *, quiet: bool) -> list[Finding]:
    """The findings of the suite, which it also prints as they come."""
    from rlcore_testing.suites import check

    say = (lambda text: None) if quiet else click.echo
    say(f"{offer.kind} {offer.name} of {offer.provider}")
    findings = []
    for finding in check(offer.kind, subject):
        findings.append(finding)
        say(f"  {_MARKS[finding.outcome]}{finding.name}{': ' if finding.reason else ''}{finding.reason}")
        if finding.outcome == "fails" and finding.meaning:
            say(f"         what is asked: {finding.meaning}")
    counts = {outcome: sum(finding.outcome == outcome for finding in findings) for outcome in _MARKS}
    say(f"{counts['ok']} hold, {counts['fails']} fail, {counts['skipped']} do not apply.")
    return findings


def _row(offer: Offer, findings: Iterable[Finding]) -> dict[str, Any]:
    return {
        "kind": offer.kind,
        "name": offer.name,
        "distribution": offer.provider.dist,
        "version": offer.provider.version,
        "findings": [asdict(finding) for finding in findings],
    }


def _bridge(registry: Registry, trainer: str) -> Any:
    """The bridge of Qwen3 that is written for a trainer; None where there is none."""
    for entry in registry.entries(Kind.MODEL):
        family = entry.record
        assert isinstance(family, ModelFamily)
        if family.trainer == trainer and QWEN3 in family.architectures:
            return resolve_part(entry, {})
    return None


# --- prompts -----------------------------------------------------------------------------------------------


def _source(registry: Registry, args: Sequence[str]) -> Entry | None:
    """The source that `args` choose, whose flags are there too."""
    choices = options.scan(args)
    values = {name: choices[name] for name in _PROMPT_FLAGS if name in choices}
    return select(registry, None, Layer(label="", values=values)).entries[Kind.SOURCE] if values else None


def _prompts(registry: Registry, flags: Layer) -> tuple[Prompt, ...]:
    """The first ones of `--data` or `--task`; none where neither is given."""
    if not any(name in flags.values for name in _PROMPT_FLAGS):
        return ()
    values = {
        name: value
        for name, value in flags.values.items()
        if name in _PROMPT_FLAGS or name.startswith(f"{Kind.SOURCE}.")
    }
    selection = select(registry, None, Layer(label="", values=values))
    source = resolve_part(selection.entries[Kind.SOURCE], selection.settings()).build()
    train = source.prompts().train
    if not len(train):
        raise PluginError(f"{COMMAND}: the source has no prompts.")
    return tuple(train[place] for place in range(min(SEEN, len(train))))
