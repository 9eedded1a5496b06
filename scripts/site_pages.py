"""The pages and tables of the documentation that the code makes: `make site` adds them (site_hooks.py).

python scripts/site_pages.py                  lists them
python scripts/site_pages.py settings.md      prints one
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import licenses

from rlcore.api import hookspecs, part_config
from rlcore.api.config import Config, fields_of, flag_name
from rlcore.api.records import LIST_KINDS, Kind
from rlcore.api.run_config import RunConfig
from rlcore.config.fields import describe
from rlcore.plugins.loader import Switches, load
from rlcore.plugins.registry import Registry
from rlcore_cli import plugin
from rlcore_cli.flags import default_text
from rlcore_cli.main import EXIT_CODES, group
from rlcore_cli.options import COMMAND, PARTS, GroupedOption, SelectedCommand
from rlcore_cli.program import start
from rlcore_import.comparison import COMPARED, tables
from rlcore_import.frameworks import FRAMEWORKS
from rlcore_import.slime.translate import environment as slime_environment
from rlcore_import.table import Rule, Table
from rlcore_megatron.source import (
    CONFIGS,
    FieldVerdict,
    Kind as Verdict,
    fields_of as megatron_fields_of,
    table as megatron_table,
)

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("rlcore", "rlcore_toolkit", "rlcore_machine", "rlcore_sandbox")
"""Those whose names are public."""


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown. `head`: its columns, divided by `|`. A cell is one line without a bare `|`."""
    lines = [[*head.split("|")], ["---"] * len(head.split("|"))]
    lines += [[re.sub(r"(?<!\\)\|", r"\\|", cell.replace("\n", "\\n")) for cell in row] for row in rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


@cache
def registry() -> Registry:
    """The bundled parts."""
    return load(Switches()).registry


# --- settings ---


def settings() -> str:
    """Every setting of a run and of the bundled parts, from the config classes."""
    text = """# Settings

This page lists every setting of a run and of the bundled parts. `rlcore train --algo NAME --help` shows
those of your choice, with the defaults of its recipe and of its model. [Configuration](configuration.md)
says how to give them.

A list takes its flag once for each item. What is true or false has two flags, such as `--shuffle` and
`--no-shuffle`.

"""
    text += "## The run\n\n" + _settings(RunConfig, "")
    for kind in Kind:
        for entry in registry().entries(kind):
            name = entry.record.name
            if kind is not Kind.ALGORITHM and entry.component.config and entry.config.model_fields:
                rows = _settings(entry.config, f"{kind}.{name}." if kind in LIST_KINDS else f"{kind}.")
                text += f"\n## {kind.value} `{name}`\n\n{rows}"
    return text


def _settings(config: type[Config], prefix: str) -> str:
    rows = []
    for name, field in fields_of(config).items():
        value = default_text(field.get_default(call_default_factory=True))
        ticks = "``" if "`" in value else "`"
        default = "required" if field.is_required() else f"{ticks}{value}{ticks}"
        takes = re.sub(r'"(\S+)"|(?<=that matches )(\S+)', r"`\1\2`", describe(field))
        meaning = re.sub(r"<(\S*?)>", r"`<\1>`", field.description or "")
        rows.append((f"`{flag_name(prefix + name)}`", default, takes, meaning))
    return table("flag|default|takes|meaning", rows)


# --- commands ---


class _Tables(click.HelpFormatter):
    """Keeps what a help text lists: heading → rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, list[tuple[str, str]]] = {}
        self._heading = ""

    def write_heading(self, heading: str) -> None:
        self._heading = heading

    def write_dl(self, rows: Iterable[tuple[str, str]], *_: int, **__: int) -> None:
        self.rows[self._heading] = list(rows)


def commands() -> str:
    """Each command that is installed, in the words of its `--help`."""
    program = start(Switches(), {"cli": plugin})
    root = group(program).make_context("rlcore", [], obj=program, resilient_parsing=True)
    head = "# Commands\n\nHere is each command, in the words of its `--help`.\n\n## Exit codes\n\n"
    return "\n".join([head + _options("exit code", EXIT_CODES.items()), *_commands(root)])


def _commands(context: click.Context) -> Iterator[str]:
    """The section of a command, then those of the commands below it."""
    yield _command(context)
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            yield from _commands(command.make_context(name, [], parent=context, resilient_parsing=True))


def _command(context: click.Context) -> str:
    command, formatter = context.command, _Tables()
    command.format_options(context, formatter)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"## {context.command_path}\n", f"    {usage}\n", _prose(command.help)]
    groups = set()
    if isinstance(command, SelectedCommand):
        groups = {option.group for option in command.params if isinstance(option, GroupedOption)}
        groups -= {COMMAND, PARTS}
    parts += [_options(name.lower(), rows) for name, rows in formatter.rows.items() if name not in groups]
    if groups:
        parts.append("It takes [the settings of the run and of the chosen parts](../settings.md) too.\n")
    return "\n".join([*parts, *[_prose(command.epilog)] * bool(command.epilog)])


def _options(heading: str, rows: Iterable[tuple[object, str]]) -> str:
    cells = (
        (f"`{' '.join(str(name).split())}`", _plain(" ".join(text.split()))) for name, text in rows if text
    )
    return table(f"{heading}|", cells)


def _prose(text: str | None) -> str:
    return _plain(inspect.cleandoc(text or "")) + "\n"


def _plain(text: str) -> str:
    """Help is plain text: nothing in it is Markdown."""
    return text.replace("<", "&lt;").replace("[", "\\[")


# --- megatron-core's fields ---

VERDICTS: Mapping[Verdict, str] = {
    "honored": "takes its value; tests set it",
    "decided": "rlcore sets it, or a flag of rlcore does",
    "model": "config.json of the model says it",
    "needs": "takes its value if the library and a GPU are there; no test has tried it",
    "unused": "nothing that runs here reads it",
}
CLASSES = {"MLATransformerConfig": "T", "OptimizerConfig": "O", "DistributedDataParallelConfig": "D"}


def megatron_fields() -> str:
    """What becomes of each field of megatron-core's config classes."""
    verdicts = megatron_table()
    counts = Counter(verdict.kind for verdict in verdicts.values())
    text = f"""# megatron-core's fields

`--megatron.FIELD` sets a field in every config class of megatron-core {version("megatron-core")} that has
it. rlcore refuses a field that would have no effect, with the reason below, unless you give the value that
the run has anyway.

{table("verdict|fields|means", ((kind, str(counts[kind]), means) for kind, means in VERDICTS.items()))}
In the column *of*, T is TransformerConfig (and MLATransformerConfig), O OptimizerConfig, D
DistributedDataParallelConfig.
"""
    for kind in VERDICTS:
        rows = (
            (f"`{flag_name('megatron.' + name)}`", _classes(name), _reason(verdict))
            for name, verdict in verdicts.items()
            if verdict.kind == kind
        )
        text += f"\n## {kind}\n\n{table('field|of|why', rows)}"
    return text


def _classes(field: str) -> str:
    return " ".join(CLASSES[config] for config in CONFIGS if field in megatron_fields_of(config))


def _reason(verdict: FieldVerdict) -> str:
    reason = verdict.why or (f"use `{verdict.flag}`" if verdict.flag else verdict.called or "of the model")
    values = "" if verdict.values is None else ", ".join(f"`{value}`" for value in verdict.values)
    return f"{reason}; the run has {values}" if values else reason


# --- other frameworks ---


def slime_flags() -> str:
    """What stands for each flag of slime, from the table of `rlcore import slime`."""
    text = """# slime's flags

This page says what `rlcore import slime` makes of each flag of slime and of its fork miles, and of
Megatron's that they pass on. [Coming from slime](migrating_from_slime.md) says how to use the command. `*`
stands for any ending. A word in bold says that a flag becomes no setting:

- **implied**: rlcore does so anyway, or reads it elsewhere.
- **no meaning**: rlcore has nothing that the flag could change.
- **not possible**: rlcore cannot do it; the row says what to do instead.
"""
    text += _rules(FRAMEWORKS["slime"]().table(), "slime", "--")
    return text + _rules(slime_environment(), "slime", "", "Environment: ")


def _rules(known: Table, name: str, prefix: str, heading: str = "") -> str:
    """A table for each topic: their settings, and what stands for them."""
    text = ""
    for topic, rules in itertools.groupby(known.rules.values(), key=lambda rule: rule.topic):
        meanings = itertools.groupby(rules, key=_meaning)
        rows = ((" ".join(f"`{prefix}{rule.flag}`" for rule in alike), why) for why, alike in meanings)
        head = f"{heading}{topic.lower()}" if heading else topic
        text += f"\n## {head}\n\n{table(f'{name}|rlcore', rows)}"
    return text


def _imported(command: str) -> str:
    """What stands for each setting of a framework whose runs are translated."""
    framework = FRAMEWORKS[command]()
    return _rules(framework.table(), framework.name, "").replace("\n## ", "\n### ")


def _meaning(rule: Rule) -> str:
    word, text = rule.summary
    return f"**{word}**: {text}" if word else text


def _framework(file: str) -> str:
    """The settings of TRL, verl or prime-rl beside rlcore's, one table for each topic."""
    head = f"{COMPARED[file]}|rlcore|remark"
    topics = {
        topic: table(head, ((row.theirs, row.ours, row.remark) for row in rows))
        for topic, rows in tables(file).items()
    }
    return "\n".join(f"### {topic}\n\n{rows}" for topic, rows in topics.items())


# --- hooks and configs ---

USUAL_CALL = "once, when the plugins are loaded"


def _hooks() -> str:
    rows = []
    for name, hook in vars(hookspecs).items():
        if name.startswith(f"{hookspecs.PROJECT}_"):
            yields, called = (
                " ".join(text.split()) for text in (inspect.getdoc(hook) or "").split("\n\n")[:2]
            )
            [signature] = re.findall(r"def \w+(\(.*\) -> .*):", inspect.getsource(hook))
            yields, called = (text.partition(" ")[2].removesuffix(".") for text in (yields, called))
            unusual = "" if called == USUAL_CALL else f". Called {called}"
            rows.append((f"`{name}`", f"`{signature.replace(chr(34), '')}`", yields + unusual))
    return table("hook|signature|yields", rows)


def _configs() -> str:
    rows = []
    for node in ast.parse(inspect.getsource(part_config)).body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
            rows.append(
                (f"**`{node.name}`**, from `{ast.unparse(node.bases[0])}`", _line(ast.get_docstring(node)))
            )
            rows += _attributes(node)
    return table("base, attribute|meaning", rows)


def _attributes(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Class variables, properties and methods. The fields of a config are settings, not attributes."""
    for item, text in zip(node.body, [*node.body[1:], None], strict=True):  # a docstring follows its variable
        if isinstance(item, ast.FunctionDef):
            names = ", ".join(arg.arg for arg in item.args.args if arg.arg not in ("self", "cls"))
            call = "" if "property" in map(ast.unparse, item.decorator_list) else f"({names})"
            yield f"`{item.name}{call}`", _line(ast.get_docstring(item))
        elif isinstance(item, ast.AnnAssign) and "ClassVar" in ast.unparse(item.annotation):
            assert isinstance(text, ast.Expr), ast.unparse(item)
            yield f"`{ast.unparse(item.target)}`", _line(ast.literal_eval(text.value))


def _line(docstring: str | None) -> str:
    return " ".join((docstring or "").split()).removesuffix(".")


# --- public names ---


def public_names(package: str) -> Iterator[tuple[str, str]]:
    """Each public name of a package, and the dotted path of its definition."""
    module = importlib.import_module(package)
    file = Path(str(module.__file__))
    stub = file.with_suffix(".pyi") if file.with_suffix(".pyi").exists() else file
    for node in ast.walk(ast.parse(stub.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            source = f"{package}.{node.module}" if node.level else node.module
            names = {alias.asname or alias.name for alias in node.names} & {*module.__all__}
            yield from ((name, f"{source}.{name}") for name in sorted(names))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):  # what rlcore-cli brings
            yield node.value.attr, f"rlcore_cli.from_python.{node.value.attr}"


def names() -> str:
    """The public names that no other page of the reference shows, for mkdocstrings."""
    pages = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "docs/reference").glob("*.md"))
    shown = set(re.findall(r"^::: ([\w.]+)", pages, re.MULTILINE))
    text = "# The other public names\n\nImport each from its package: `from rlcore import replace_file`.\n"
    for package in PACKAGES:
        paths = (path for _, path in public_names(package) if not {path, path.rpartition(".")[0]} & shown)
        text += f"\n## {package}\n\n" + "".join(f"::: {path}\n\n" for path in paths)
    return text


# --- gaps ---


def _largest(values: Mapping[str, float]) -> str:
    return f"{max(values.values()):.1e}"


def _mean(values: Mapping[str, float]) -> str:
    return f"{values['mean']:.4f} ({values['k3']:.1e})"


GAPS: Mapping[str, Callable[[Any], str]] = {
    "configs": lambda names: str(len(names)),
    "logits": _largest,
    "gradients": _largest,
    "bf16": lambda values: f"{max(values.values()):.2f}",
    "`local`": _largest,
    "layouts: log-probs": _largest,
    "layouts: gradients": _largest,
    "SGLang": _largest,
    "bf16 engine": _mean,
    "replayed": _mean,
}
"""Column → its cell, of what scripts/gaps.py measured for it."""


def _measured() -> Mapping[str, Mapping[str, Any]]:
    """Family → column → what was measured."""
    found = json.loads((ROOT / "benchmarks/results/gaps.json").read_text(encoding="utf-8"))
    families: Mapping[str, Mapping[str, Any]] = found["families"]
    return families


def _gaps() -> str:
    rows = (
        (f"`{family}`", *(cell(found[name]) if name in found else "" for name, cell in GAPS.items()))
        for family, found in _measured().items()
    )
    return table("|".join(["family", *GAPS]), rows)


def _layout_gaps() -> str:
    """A column for each layout: the gap of a log-prob, and of a gradient."""
    found = {
        family: [columns.get(f"layouts: {kind}", {}) for kind in ("log-probs", "gradients")]
        for family, columns in _measured().items()
    }
    layouts = sorted({layout for log_probs, _ in found.values() for layout in log_probs})
    rows = (
        (
            f"`{family}`",
            *(", ".join(f"{one[layout]:.1e}" for one in kinds if layout in one) for layout in layouts),
        )
        for family, kinds in found.items()
    )
    return table("|".join(["family", *layouts]), rows)


# --- licenses ---


def license_page() -> str:
    """Under which licenses the members are, and the packages that they need."""
    rows, absent = licenses.rows()
    last = f"\nNot installed for development, so not checked: {', '.join(absent)}.\n" if absent else ""
    return f"""# Licenses

Every member of rlcore is under `{licenses.own()}`. You may use, change and sell what you build with it;
keep the license text with copies.

`make test` checks these packages, and all that they need in turn, against a list of licenses that fit.
`BSD` stands where the metadata do not say which BSD license it is. On a machine with a GPU, the CUDA build
of torch brings libraries of NVIDIA, under NVIDIA's own terms.

{table("package|license|only for", rows)}{last}"""


PAGES: Mapping[str, Callable[[], str]] = {
    "settings.md": settings,
    "megatron_fields.md": megatron_fields,
    "slime_flags.md": slime_flags,
    "licenses.md": license_page,
    "reference/commands.md": commands,
    "reference/names.md": names,
}
"""Pages of the site that docs/ does not have."""
TABLES: Mapping[str, Callable[[], str]] = {
    "hooks": _hooks,
    "configs": _configs,
    "gaps": _gaps,
    "layout_gaps": _layout_gaps,
    **{command: partial(_imported, command) for command in FRAMEWORKS if command != "slime"},
    **{file: partial(_framework, file) for file in COMPARED},
}
"""NAME → what stands on the site for `<!-- table: NAME -->`."""


if __name__ == "__main__":
    makers: Mapping[str, Callable[[], Any]] = {**PAGES, **TABLES}
    print(makers[sys.argv[1]]() if sys.argv[1:] else "\n".join(makers))
