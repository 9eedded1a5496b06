"""Every flag that a page names exists, and so does every setting of other frameworks in the tables."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pages
import pytest
import site_pages

from rlcore.compose.evals import EvalConfig
from rlcore.plugins.loader import Switches
from rlcore_cli import plugin
from rlcore_cli.main import group
from rlcore_cli.program import start
from rlcore_import.comparison import COMPARED, tables
from rlcore_import.frameworks import FRAMEWORKS

FLAG = re.compile(r"(?<![\w-])--[a-z][\w.*-]*\w(?![\w.-]*[*…])")
ASIDE = ("migrating_from_slime.md", "benchmarks.md", "gpu_proof.md")
"""Pages with the flags of slime, with those that are refused, and with those of scripts."""
OTHERS = {
    *("--decoder-last-pipeline-num-layers", "--group-rm"),  # slime's
    *("--num_generations", "--num_processes"),  # TRL's, and accelerate's
    *("--shm-size", "--ipc"),  # Docker's
    "--internal-certs",  # caddy's
    "--model-path",  # of the server `rlcore_local`, started by hand
    *("--check", "--release", "--sglang", "--strict", "--upgrade", "--write"),  # of ruff, mkdocs and scripts
    *("--batch", "--signal"),  # SLURM's
    "--no-deps",  # of pip
    "--enable-optimizations",  # of Python's build
}
NAMED = re.compile(
    r"--(sglang|frozen\.\w+|engine-group\.\w+|(critic|reference|teacher)\.megatron|eval\.NAME\.reward)\.[\w-]+"
)
"""Tables whose fields are SGLang's own, or those of another table."""


def options(command: click.Command, parent: click.Context) -> Iterator[str]:
    """Every option of `command`, and of the commands in it."""
    context = command.make_context(command.name, [], parent=parent, resilient_parsing=True)
    for option in context.command.params:
        yield from (name for name in (*option.opts, *option.secondary_opts) if name.startswith("--"))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from options(inner, context)


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Every flag, as the pages write them."""
    program = start(Switches(), fixed={"cli": plugin})
    commands = group(program)
    fields = re.split("^## ", site_pages.megatron_fields(), flags=re.MULTILINE)
    honored = [text for text in fields if text.startswith(("honored", "needs"))]
    text = "\n".join([site_pages.settings(), *honored])
    known = set(re.findall(r"^\| `(--[\w.-]+)`", text, re.MULTILINE))
    known |= set(options(commands, click.Context(commands, obj=program)))
    known |= {
        f"--eval.NAME.{name.replace('_', '-')}" for name in (*EvalConfig.model_fields, "reward", "generator")
    }
    known |= {re.sub(r"^(--[a-z-]+)\.[\w-]+(?=\.)", r"\1.NAME", name) for name in known}
    known |= {f"--eval.NAME.{kind}.FIELD" for kind in ("reward", "generator", "source")}
    known |= {
        f"--no-{name}" for name in re.findall(r"^\| `--([\w.-]+)` \| `(?:true|false)` ", text, re.MULTILINE)
    }
    known |= {f"{name.rpartition('.')[0]}.FIELD" for name in known}
    return known | {
        "--help",
        "--policy.NAME.lr",
        "--teacher.NAME.url",
        "--reward.NAME.FIELD",
        "--trainer.FIELD",
        "--source.chat-template-kwargs.NAME",
    }


@pytest.mark.parametrize(
    "page", [page for page in pages.PAGES if page.name not in ASIDE], ids=lambda page: page.name
)
def test_every_flag_of_a_page_exists(page: Path, known: set[str]) -> None:
    assert not missing({flag for code in pages.inline(page) for flag in FLAG.findall(code)}, known)


def missing(flags: set[str], known: set[str]) -> list[str]:
    named = {re.sub(r"^--eval\.\w+", "--eval.NAME", flag) for flag in flags}
    return sorted(flag for flag in named - known - OTHERS if not NAMED.fullmatch(flag))


def nodes(config: object, path: str = "") -> Iterator[str]:
    """The dotted paths of everything in nested tables; those of a list are the paths of its tables."""
    for name, value in config.items() if isinstance(config, dict) else ():
        yield f"{path}{name}"
        for inner in value if isinstance(value, list) else [value]:
            yield from nodes(inner, f"{path}{name}.")


def first_block(page: str) -> str:
    """The run of the other framework that a page begins with."""
    return pages.fences(pages.DOCS / page)[0].text


PRIME_RL = (Path(__file__).parent / "prime_rl_settings.txt").read_text().splitlines()
"""What scripts/prime_rl_settings.py found: `path`, or `path = default`."""


def test_the_table_of_prime_rl_has_its_settings_and_defaults() -> None:
    rows = [row for rows in tables("prime_rl").values() for row in rows]
    named = [
        (name.replace('"', "'"), row.remark) for row in rows for name in re.findall(r"`([^`]+)`", row.theirs)
    ]
    assert len(named) > 80
    assert not {name for name, _ in named} - {*PRIME_RL, *(line.partition(" = ")[0] for line in PRIME_RL)}
    given = [(name, match[1]) for name, remark in named if (match := THEIR_DEFAULT.match(remark))]
    assert len(given) > 8
    assert not [(name, value) for name, value in given if spoken(value) not in prime_rl_defaults(name)]


THEIR_DEFAULT = re.compile(r"([\d.e-]+|on|off) (?:there,|in both)")
"""How the remark of a setting begins that says its default."""


def spoken(value: str) -> object:
    return {"on": True, "off": False}[value] if value in ("on", "off") else float(value)


def prime_rl_defaults(name: str) -> list[object]:
    lines = [line.partition(" = ") for line in PRIME_RL]
    return [ast.literal_eval(value) for path, _, value in lines if path == name and value]


def test_the_run_of_prime_rl_has_its_settings() -> None:
    known = {line.partition(" = ")[0] for line in PRIME_RL}
    run = set(nodes(tomllib.loads(first_block("migrating_from_prime_rl.md"))))
    verifiers = {name for name in run if ".source.env." in name}  # its own settings
    assert verifiers
    assert not run - known - verifiers


@pytest.mark.parametrize("framework", COMPARED)
def test_a_table_of_another_framework_says_something_of_each_setting(framework: str) -> None:
    """Each row has a flag of rlcore, or says that there is none or that nothing is to be set."""
    cells = [row.ours for rows in tables(framework).values() for row in rows]
    assert not [cell for cell in cells if cell not in ("none", "implied") and "`" not in cell]


@pytest.mark.parametrize("framework", sorted({*COMPARED, *FRAMEWORKS} - {"slime"}))
def test_every_flag_of_these_tables_exists(framework: str, known: set[str]) -> None:
    assert not missing({*FLAG.findall(site_pages.TABLES[framework]())}, known)
