"""Every flag that a page names exists, and so does every setting of other frameworks in the tables."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import pages
import pytest
import yaml

from rlcore.compose.evals import EvalConfig
from rlcore.plugins.loader import Switches
from rlcore_cli import plugin
from rlcore_cli.main import group
from rlcore_cli.program import start

FLAG = re.compile(r"(?<![\w-])--[a-z][\w.*-]*\w(?![\w.-]*[*…])")
ASIDE = ("migrating_from_slime.md", "slime_flags.md", "megatron_fields.md", "benchmarks.md", "gpu_proof.md")
"""Pages with the flags of slime, with those that are refused, and with those of scripts."""
OTHERS = {
    *("--decoder-last-pipeline-num-layers", "--group-rm"),  # slime's
    "--num_generations",  # TRL's
    "--other",  # stands for any, in versions.md
    "--loss.clip_high",  # misspelt on purpose, in newcomer_log.md
    *("--shm-size", "--ipc"),  # Docker's
    "--internal-certs",  # caddy's
    "--model-path",  # of the server `rlcore_local`, started by hand
    *("--check", "--release", "--sglang", "--strict", "--write"),  # of ruff, mkdocs and scripts
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
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        yield from options(inner, context)


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Every flag, as the pages write them."""
    program = start(Switches(), own={"cli": plugin})
    commands = group(program)
    fields = (pages.DOCS / "megatron_fields.md").read_text()
    honored = re.findall(r"## (?:honored|needs)\n(.*?)(?=\n## |\Z)", fields, re.DOTALL)
    tables = "\n".join([(pages.DOCS / "settings.md").read_text(), *honored])
    known = set(re.findall(r"^\| `(--[\w.-]+)`", tables, re.MULTILINE))
    known |= set(options(commands, click.Context(commands, obj=program)))
    known |= {
        f"--eval.NAME.{name.replace('_', '-')}" for name in (*EvalConfig.model_fields, "reward", "generator")
    }
    known |= {re.sub(r"^(--[a-z-]+)\.[\w-]+(?=\.)", r"\1.NAME", name) for name in known}
    known |= {f"--eval.NAME.{kind}.FIELD" for kind in ("reward", "generator", "source")}
    known |= {
        f"--no-{name}" for name in re.findall(r"^\| `--([\w.-]+)` \| `(?:true|false)` ", tables, re.MULTILINE)
    }
    known |= {f"{name.rpartition('.')[0]}.FIELD" for name in known}
    return known | {"--help", "--reward.NAME.FIELD", "--trainer.FIELD", "--source.chat-template-kwargs.NAME"}


@pytest.mark.parametrize(
    "page", [page for page in pages.PAGES if page.name not in ASIDE], ids=lambda page: page.name
)
def test_every_flag_of_a_page_exists(page: Path, known: set[str]) -> None:
    named = {flag for code in pages.inline(page) for flag in FLAG.findall(code)}
    named = {re.sub(r"^--eval\.\w+", "--eval.NAME", flag) for flag in named}
    assert not sorted(flag for flag in named - known - OTHERS if not NAMED.fullmatch(flag))


def theirs(page: str) -> set[str]:
    """The settings in the first cells of the page's tables, without a value: `beta`, `loss_type="grpo"`."""
    cells = re.findall(r"^\| ([^|]+) \|", (pages.DOCS / page).read_text(), re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([\w.]+)(?:=[^`]*)?`", cell)}


def package(name: str) -> Path:
    found = find_spec(name)
    if found is None or found.origin is None:
        pytest.skip(f"{name} is not installed")
    return Path(found.origin).parent


def declared(*files: Path) -> set[str]:
    """The fields of classes, and the parameters of functions, in Python files."""
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    fields = {
        node.target.id
        for node in nodes
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return fields | {node.arg for node in nodes if isinstance(node, ast.arg)}


def test_the_table_of_trl_has_its_settings() -> None:
    trl, transformers = package("trl"), package("transformers")
    names = ("trainer/base_config.py", "trainer/grpo_config.py", "trainer/grpo_trainer.py")
    files = [trl / name for name in (*names, "experimental/async_grpo/async_grpo_config.py")]
    named = theirs("migrating_from_trl.md")
    assert len(named) > 80
    assert not named - declared(*files, transformers / "training_args.py")
    run = ast.walk(ast.parse(first_block("migrating_from_trl.md")))
    given = {node.arg for node in run if isinstance(node, ast.keyword)}
    assert len(given) > 5
    assert not given - declared(*files, transformers / "training_args.py")


def nodes(config: object, path: str = "") -> Iterator[str]:
    """The dotted paths of everything in nested tables; those of a list are the paths of its tables."""
    for name, value in config.items() if isinstance(config, dict) else ():
        yield f"{path}{name}"
        for inner in value if isinstance(value, list) else [value]:
            yield from nodes(inner, f"{path}{name}.")


def first_block(page: str) -> str:
    """The run of the other framework that a page begins with."""
    return pages.fences(pages.DOCS / page)[0].text


def test_the_table_of_verl_has_its_settings() -> None:
    folder = package("verl") / "trainer" / "config"
    files = [folder / f"_generated_ppo_{name}.yaml" for name in ("trainer", "megatron_trainer")]
    named = theirs("migrating_from_verl.md")
    assert len(named) > 80
    known = {name for file in files for name in nodes(yaml.safe_load(file.read_text()))}
    assert not named - known
    run = re.findall(r"([\w.]+)=", first_block("migrating_from_verl.md"))
    assert len(run) > 10
    assert not set(run) - known


PRIME_RL = (Path(__file__).parent / "prime_rl_settings.txt").read_text().splitlines()
"""What scripts/prime_rl_settings.py found: `path`, or `path = default`."""


def test_the_table_of_prime_rl_has_its_settings_and_defaults() -> None:
    page = (pages.DOCS / "migrating_from_prime_rl.md").read_text()
    rows = re.findall(r"^\| (`[^|]+) \| [^|]+ \| ([^|]*)\|", page, re.MULTILINE)
    named = [
        (name.replace('"', "'"), remark) for cell, remark in rows for name in re.findall(r"`([^`]+)`", cell)
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


@pytest.mark.parametrize(
    "page", ["migrating_from_trl.md", "migrating_from_verl.md", "migrating_from_prime_rl.md"]
)
def test_a_table_of_another_framework_says_something_of_each_setting(page: str) -> None:
    """Each row has a flag of rlcore, or says that there is none or that nothing is to be set."""
    cells = re.findall(r"^\| [^|]+ \| ([^|]+) \|", (pages.DOCS / page).read_text(), re.MULTILINE)
    silent = [cell for cell in cells if cell not in ("---", "rlcore", "none", "implied") and "`" not in cell]
    assert not silent
