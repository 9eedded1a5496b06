"""The options of `rlcore train`: its own, the choices, and those of the selected parts."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rlcore.api.config import flag_name, named_fields
from rlcore.api.errors import ConfigError, did_you_mean
from rlcore.api.records import LIST_KINDS, Kind
from rlcore.api.run_config import ROLES, RunConfig
from rlcore.api.types import Json, parse_json
from rlcore.compose.engine_groups import ENGINE_GROUP
from rlcore.compose.evals import EVAL, PARTS as EVAL_PARTS
from rlcore.compose.frozen import FROZEN
from rlcore.compose.selection import CHOICES, REPEATED, Selection, table_owners
from rlcore.config import layers
from rlcore.config.layers import Layer
from rlcore.config.toml import NONE
from rlcore.plugins.registry import REQUIRED_LISTS
from rlcore_cli.flags import Flag, flags
from rlcore_cli.program import early_options

Params = Mapping[str, Any]
COMMAND, PARTS = "this command", "parts"
ALL = "all"
_EMPTIERS = {flag_name(f"no-{kind}"): kind.value for kind in LIST_KINDS}
NO_CHOICES = ("config", "resume")
_METAVARS = {"data": "PATH", EVAL: "NAME=PATH"}
_PLACE = f"{Kind.CLUSTER}."
"""A setting of one cluster alone chooses that cluster."""
_EVAL_PART = re.compile(rf"{EVAL}\.\w+\.({'|'.join(EVAL_PARTS)})")


class GroupedOption(click.Option):
    """An option that stands under the heading `group` of the help text. `common`: it is shown unasked."""

    def __init__(self, declarations: Sequence[str], *, group: str, common: bool = True, **more: Any) -> None:
        super().__init__(declarations, **more)
        self.group, self.common = group, common


class SettingOption(GroupedOption):
    """An option that gives the setting `setting` (a dotted name), or of a table of values that of `key`.

    With `empties`, an empty list.
    """

    def __init__(
        self, setting: str, option: str, *, empties: bool = False, key: str = "", **more: Any
    ) -> None:
        parameter = "__".join(["no" if empties else "set", *setting.split("."), *([key] if key else [])])
        super().__init__([parameter, option], default=None, **more)
        self.setting, self.empties, self.key = setting, empties, key


def scan(args: Sequence[str]) -> dict[str, Any]:
    """The choices in `args`, those of evaluations too, before any other flag is known.

    With `config` and `resume`, which are no choices.
    """
    choices: dict[str, Any] = {}
    for position, argument in enumerate(args):
        if argument == "--":
            break
        flag, equals, value = argument.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if flag in _EMPTIERS:
            choices[_EMPTIERS[flag]] = []
        is_choice = name in {*CHOICES, *NO_CHOICES} or _EVAL_PART.fullmatch(name) or name.startswith(_PLACE)
        if not flag.startswith("--") or not is_choice:
            continue
        if not equals:
            if position + 1 == len(args):
                break
            value = args[position + 1]
        if value == NONE and name in {*LIST_KINDS} - {*REQUIRED_LISTS}:
            what = name.replace("_", " ")
            raise ConfigError(f"{flag}: found {value!r}; {flag_name(f'no-{name}')} leaves out every {what}.")
        choices[name] = [*choices.get(name, []), value] if name in REPEATED else value
    return {name: _one_path(name, value) for name, value in choices.items()}


def all_options(selection: Selection, args: Sequence[str]) -> Iterator[click.Parameter]:
    """Every option that `train` takes for this selection; pass-through ones as far as `args` has them."""
    yield from _command_options()
    for name, text in CHOICES.items():
        yield from choice(name, text, selection)
    yield from eval_parts(selection)
    for flag in flags(selection):
        yield from setting(flag)
    yield from pass_through(args, selection)
    yield from keyed(args, selection)


def settings_in(options: Sequence[click.Parameter], values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted name → raw value of every setting that stands on the command line."""
    settings: dict[str, Any] = {}
    for option in options:
        value = values.get(str(option.name))
        if isinstance(option, SettingOption) and value not in (None, ()):
            raw = list(value) if isinstance(value, tuple) else value
            if option.key:
                settings.setdefault(option.setting, {})[option.key] = _json(str(value))
            else:
                settings[option.setting] = [] if option.empties else _one_path(option.setting, raw)
    return settings


def _json(text: str) -> Json:
    """What the value of a key means: JSON, or else the text itself."""
    try:
        return parse_json(text)
    except ValueError:
        return text


def _one_path(name: str, value: Any) -> Any:
    """One `--data` is a path, several are a list."""
    return value[0] if name == "data" and isinstance(value, list) and len(value) == 1 else value


def _is_in(heading: str, table: str) -> bool:
    """Whether what stands under `heading` is in `table`: `filter: zero_std` is in filter.zero_std, and in
    filter.
    """
    return table in (heading, heading.partition(": ")[0], heading.replace(": ", "."))


def _command_options() -> Iterator[click.Parameter]:
    path = click.Path(path_type=Path)
    yield GroupedOption(
        ["--config"], group=COMMAND, metavar="FILE", type=path, help="Settings from a TOML file."
    )
    yield GroupedOption(
        ["--resume"], group=COMMAND, metavar="RUN", type=path, help="Go on with the run in this folder."
    )
    yield GroupedOption(
        ["--run-dir"], group=COMMAND, metavar="PATH", type=path, help="Folder of the run.  [default: runs/…]"
    )
    yield GroupedOption(
        ["--export"],
        group=COMMAND,
        metavar="DIR",
        type=path,
        help="At the end, write the model to this new folder, as transformers loads it.",
    )
    yield GroupedOption(
        ["--dry-run"],
        group=COMMAND,
        is_flag=True,
        help="Print the resolved TOML, or JSON with --json, and train nothing.",
    )
    yield GroupedOption(
        ["--json", "as_json"], group=COMMAND, is_flag=True, help="End with one JSON object on stdout."
    )
    yield from early_options()


def eval_parts(selection: Selection) -> Iterator[click.Parameter]:
    """An option for each part that an evaluation may have of its own."""
    for evaluation in selection.evals:
        for part in EVAL_PARTS:
            yield _eval_part(f"{evaluation.table}.{part}", part, selection)


def _eval_part(name: str, part: str, selection: Selection) -> click.Parameter:
    value = layers.merge(selection.layers).get(name)
    text = f"its own {part} [{value.value if value else 'that of the run'}]"
    heading = ": ".join(name.split(".")[:2])
    return SettingOption(name, flag_name(name), group=heading, metavar="NAME", help=text)


def choice(name: str, text: str, selection: Selection) -> Iterator[click.Parameter]:
    """The options behind one choice; `text`: its help."""
    now = selection.chosen(name)
    yield SettingOption(
        name,
        flag_name(name),
        group=PARTS,
        metavar=_METAVARS.get(name, "NAME"),
        multiple=name in REPEATED,
        help=f"{text} [{now}]" if now else text,
    )
    if name in LIST_KINDS:
        yield _emptier(name, flag_name(f"no-{name}"), PARTS)


def setting(flag: Flag) -> Iterator[click.Parameter]:
    """The options of one setting."""
    text = f"{flag.help.removesuffix('.')} [{flag.default}]"
    if flag.switch:
        both = f"{flag.option}/{flag.off_option}"
        yield SettingOption(flag.name, both, group=flag.group, common=flag.common, help=text)
        return
    yield SettingOption(
        flag.name,
        flag.option,
        group=flag.group,
        common=flag.common,
        metavar=flag.metavar,
        multiple=flag.many,
        help=text,
    )
    if flag.many:
        yield _emptier(flag.name, flag.off_option, flag.group)


def _emptier(setting: str, option: str, group: str) -> click.Parameter:
    return SettingOption(
        setting, option, empties=True, group=group, is_flag=True, flag_value=True, hidden=True
    )


def passed_help(selection: Selection) -> Iterator[tuple[str, tuple[str, str]]]:
    """Heading and line of help of each table of fields that pass through, or that the user names."""
    for entry, config in selection.passing():
        table = config.table
        yield table, (f"--{table}.FIELD VALUE", f"any field of {config.fields_of}, by its own name")
        if entry.kind is Kind.TRAINER:
            text = f"a field of the critic, reference or teacher alone, in place of --{table}.FIELD"
            yield table, (f"--ROLE.{table}.FIELD VALUE", text)
    yield "lora", ("--policy.NAME.FIELD VALUE", "lr, rank, alpha or targets of one more policy")
    yield "teacher", ("--teacher.NAME.url URL", "one of several teachers, as --teacher.url says")
    for option, name in ((f"--{FROZEN}", "frozen model"), (flag_name(ENGINE_GROUP), "engine group")):
        yield "serving", (f"{option}.NAME.FIELD VALUE", f"any field of the servers of that {name}")


def pass_through(args: Sequence[str], selection: Selection) -> Iterator[click.Parameter]:
    """An option for each pass-through field in `args`; one without a value means true.

    With those of tables that the user names. Of parts that are not selected too, whose fields are refused
    afterwards.
    """
    owners = list(table_owners(selection.registry))
    tables = {config.table for _, config in owners} | {FROZEN, "engine-group"}
    trainers = [config.table for entry, config in owners if entry.kind is Kind.TRAINER]
    tables |= {f"{role}.{table}" for role in ROLES for table in trainers}
    prefixes = tuple(f"--{table}." for table in sorted(tables))
    seen = set()
    for position, argument in enumerate(args):
        flag, equals, _ = argument.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        is_named = name in named_fields(RunConfig, name)
        if not (flag.startswith(prefixes) or is_named) or flag in seen:
            continue
        seen.add(flag)
        successor = args[position + 1] if position + 1 < len(args) else "--"
        bare = not equals and successor.startswith("--")
        yield SettingOption(name, flag, group=PARTS, is_flag=bare, hidden=True)


def keyed(args: Sequence[str], selection: Selection) -> Iterator[click.Parameter]:
    """An option for each key that `args` give of a setting that is a table of values."""
    tables = {f"{flag.option}.": flag for flag in flags(selection) if flag.table}
    for option in dict.fromkeys(argument.partition("=")[0] for argument in args):
        for prefix, flag in tables.items():
            key = option.removeprefix(prefix).replace("-", "_")
            if option.startswith(prefix) and key:
                yield SettingOption(flag.name, option, key=key, group=flag.group, hidden=True)


class SelectedCommand(click.Command):
    """A command with the flags of one selection.

    `run` gets the layer of the flags that were given, and all parameters; `unknown` words the refusal of a
    setting that the selection does not have, with the layer that names it as it was typed, and the command's
    own options, one of which may be meant; `passed`: the lines of `passed_help`.
    """

    allow_extra_args = True
    """Words that are no options are refused here, because other frameworks write settings so."""

    def __init__(
        self,
        params: Iterable[click.Parameter],
        *,
        run: Callable[[Layer, Params], None],
        unknown: Callable[[str, Layer, Iterable[str]], str],
        passed: Iterable[tuple[str, tuple[str, str]]],
        **more: Any,
    ) -> None:
        super().__init__(params=list(params), **more)
        self._run, self._unknown, self._passed = run, unknown, list(passed)
        self._shown = ""

    def invoke(self, ctx: click.Context) -> None:
        self._run(Layer(label="", values=settings_in(self.params, ctx.params)), ctx.params)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        single = [word for word in args if re.match(r"-[a-z]{2}", word)]  # click consumes `args`
        try:
            words = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if matches := [word for word in single if word.startswith(error.option_name)]:
                raise ConfigError(f"{matches[0]}: expected two dashes, -{matches[0]}.") from error
            name = error.option_name.lstrip("-").replace("-", "_")
            layer = Layer(label="", values={}, written_as={name: error.option_name})
            raise ConfigError(self._unknown(name, layer, self._names())) from error
        if words:
            raise ConfigError(self._stray(words[0]))
        return words

    def _stray(self, word: str) -> str:
        """The sentence for a word that is no option: `NAME=VALUE`, as Hydra takes it, or any other."""
        name, equals, value = word.lstrip("+~").partition("=")
        option = flag_name(name)
        if not equals or not re.fullmatch(r"[\w.-]+", name):
            return (
                f"found {word!r}, expected options only: --NAME VALUE, and the option again for each value."
            )
        if any(option in param.opts for param in self.params):
            return f"found {word!r}, expected {option} {value}."
        return self._unknown(name, Layer(label="", values={}), self._names())

    def _names(self) -> list[str]:
        """The options that are no settings."""
        return [param.opts[0] for param in self.params if getattr(param, "group", COMMAND) == COMMAND]

    def get_help_option(self, ctx: click.Context) -> click.Option:
        return GroupedOption(
            ["--help"],
            group=COMMAND,
            is_flag=False,
            flag_value="",
            metavar="[all|TABLE]",
            is_eager=True,
            expose_value=False,
            callback=self._print_help,
            help="Show the settings that people use; all; or those of one table.",
        )

    def _print_help(self, ctx: click.Context, _: click.Parameter, table: str | None) -> None:
        if table is None or ctx.resilient_parsing:
            return
        if table not in ("", ALL) and not any(_is_in(heading, table) for heading in self._headings()):
            tables = [heading.replace(": ", ".") for heading in self._headings()]
            raise ConfigError(
                f"--help: found {table!r}, expected {ALL}, or a table: {', '.join(tables)}."
                f"{did_you_mean(table, [ALL, *tables])}"
            )
        self._shown = table
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()

    def _headings(self) -> list[str]:
        """The headings of settings, in their order."""
        groups = [getattr(param, "group", COMMAND) for param in self.params]
        headings = dict.fromkeys([*groups, *(heading for heading, _ in self._passed)])
        return [heading for heading in headings if heading not in (COMMAND, PARTS)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        rest = 0
        for param in self.get_params(ctx):
            heading, record = getattr(param, "group", COMMAND), param.get_help_record(ctx)
            is_shown = self._shown == ALL or _is_in(heading, self._shown)
            if record and (is_shown or (not self._shown and getattr(param, "common", True))):
                groups.setdefault(heading, []).append(record)
            else:
                rest += record is not None
        for heading, line in self._passed:
            if self._shown == ALL or _is_in(heading, self._shown):
                groups.setdefault(heading, []).append(line)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)
        if rest and not self._shown:
            tables = dict.fromkeys(heading.partition(": ")[0] for heading in self._headings())
            formatter.write_paragraph()
            command = f"{ctx.command_path} --help"
            formatter.write_text(f"{rest} more: {command} {ALL}. One table: {command} {', '.join(tables)}.")
