"""The program itself: commands from plugins, early switches, exit codes, and what it imports."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from program import Program
from refusals import Case, cases

from rlcore.api.records import Kind
from rlcore.plugins.loader import Switches, load
from rlcore_cli.main import ALWAYS
from rlcore_cli.program import Function, LazyCommand, help_of, loaded, split, start
from rlcore_testing.programs import ran

HEAVY = ("torch", "ray", "megatron", "transformers", "sglang", "rich", "numpy", "aiohttp")

COMMAND = '''
import click
from rlcore.api.errors import RunError
from rlcore.api.hookspecs import hookimpl
from rlcore.api.records import Component

def record(**fields):
    return Component(**{"name": "greet", "factory": "prints_and_greets:hello", "summary": "Hi."} | fields)

@click.command()
@click.option("--fail")
def hello(fail):
    """Say hello."""
    if fail == "run":
        raise RunError("it died.")
    if fail == "interrupt":
        raise KeyboardInterrupt
    click.echo("hello")

@hookimpl
def rlcore_commands():
    yield hello
'''


@pytest.fixture
def hello(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RLCORE_PLUGINS", "")
    file = tmp_path / "hello.py"
    file.write_text(COMMAND)
    return str(file)


@pytest.mark.parametrize(
    "args",
    [["--help"], ["--version"], ["plugins"], ["train", "--help"], ["train", "--algo", "grpo", "--help"]],
)
def test_answers_import_nothing_heavy(args: Sequence[str]) -> None:
    code = (
        "import sys; from rlcore_cli.main import run; code = run(sys.argv[1:]); "
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = ran(sys.executable, "-c", code, *args)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert done.stdout


@pytest.mark.parametrize("args", [["--help"], ["plugins"]])
def test_what_is_installed_is_told_without_settings_and_commands(args: Sequence[str]) -> None:
    """No pydantic, and no module that a record names: each would be paid for at every start."""
    code = (
        "import sys; from rlcore_cli.main import run; run(sys.argv[1:]); known = set(sys.modules); "
        "from rlcore_cli.main import ALWAYS; from rlcore_cli.program import Switches, start; "
        "program = start(Switches(), ALWAYS); records = [entry.record for entry in program.plugins.entries]; "
        "named = [getattr(one, name, '') for one in records for name in ('config', 'factory')]; "
        "named += [getattr(command, 'factory', '') for _, command in program.commands]; "
        "named = {str(one).partition(':')[0] for one in named} - {'', 'rlcore_cli.listing'}; "
        "heavy = {'pydantic', 'asyncio', 'importlib.metadata', *named} & known; "
        "print(len(named) > 100, sorted(heavy), file=sys.stderr)"
    )
    assert ran(sys.executable, "-c", code, *args).stderr == "True []\n"


def test_the_line_of_a_command_is_the_first_of_its_help() -> None:
    commands = [command for _, command in start(Switches(), ALWAYS).commands]
    assert len(commands) > 10
    for command in commands:
        assert isinstance(command, LazyCommand)
        assert (command.name, help_of(command)) == (loaded(command).name, help_of(loaded(command)))


def test_ctrl_c_ends_the_program_in_one_line_while_it_is_still_imported() -> None:
    code = """
import sys
class CtrlC:
    def find_spec(self, name, path, target=None):
        if name == "rlcore_cli.program":
            raise KeyboardInterrupt
sys.meta_path.insert(0, CtrlC())
(script,) = __import__("importlib.metadata").metadata.entry_points(name="rlcore", group="console_scripts")
script.load()()
"""
    done = ran(sys.executable, "-c", code)
    assert (done.returncode, done.stderr) == (130, "error: interrupted.\n")


def test_a_cluster_prepares_before_torch_is_imported() -> None:
    code = "import rlcore.runtime.train, rlcore_cli.evaluation_run, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], timeout=120, check=True)


def test_a_plugin_adds_a_command(hello: str, program: Program) -> None:
    for args in (["--plugin", hello, "hello"], ["hello", f"--plugin={hello}"]):
        assert program(*args) == "hello\n"


def test_exit_codes(hello: str, program: Program) -> None:
    program("hello", "--plugin", hello, "--fail", "run", code=1)
    assert program.err == "error: it died.\n"
    program("hello", "--plugin", hello, "--fail", "interrupt", code=130)
    assert program.err.strip() == "error: interrupted."
    said = program.refused("hello", "--plugin", hello, "--nope")
    assert said == "No such option '--nope'; see rlcore hello --help."


@cases("cli: usage")
def test_a_wrong_usage_says_what_to_do(case: Case, program: Program) -> None:
    case.check(program.refused(*case.given.split()))


def test_a_missing_option_is_told_with_its_help(tmp_path: Path, program: Program) -> None:
    file = tmp_path / "ask.py"
    file.write_text(
        "import click\nfrom rlcore import hookimpl\n"
        "@hookimpl\ndef rlcore_commands():\n"
        "    for name, text in (('told', \"The run's 'name'.\"), ('untold', None)):\n"
        "        yield click.Command(name, params=[click.Option(['--of'], required=True, help=text)])\n"
    )
    said = program.refused("--plugin", str(file), "told")
    assert said == "--of is missing: The run's 'name'; see rlcore told --help."
    assert program.refused("--plugin", str(file), "untold") == "--of is missing; see rlcore untold --help."


def test_a_traceback_is_shown_on_request(
    hello: str, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLCORE_DEBUG", "1")
    program("hello", "--plugin", hello, "--fail", "run", code=1)
    assert "Traceback" in program.err


def test_the_own_commands_are_there_without_any_plugin(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLCORE_PLUGINS", "")
    listed = program.json("plugins", "list", "--json")
    assert {row["distribution"] for row in listed["plugins"]} == {"rlcore-cli"}
    assert listed["broken"] == []
    assert "between checkpoints and Hugging Face directories" in " ".join(program("--help").split())


def test_a_part_is_shown_with_its_settings(program: Program) -> None:
    out = program("plugins", "show", "grpo")
    assert "algorithm grpo: " in out
    assert "\n  chosen by  --algo grpo\n" in out
    assert "\nadvantage grpo: " in out
    assert "advantage.py)" in out
    out = program("plugins", "show", "functions")
    assert "reward_adapter functions: makes a reward of a function with a parameter such as response" in out
    assert "\n  takes      args, sample; args, samples\n" in out
    assert "    --reward.NAME.args  {}  further attributes" in out
    out = program("plugins", "show", "exact_match")
    assert "  chosen by  --reward exact_match\n" in out
    assert re.search(r"--reward\.exact-match\.casefold +false +ignore upper and lower case", out)
    said = program.refused("plugins", "show", "exactmatch")
    assert "nothing is called 'exactmatch'. Did you mean 'exact_match'?" in said


def test_help_that_is_too_long_for_the_terminal_goes_below_its_flag(
    monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    lines = program("plugins", "show", "exact_match").splitlines()
    assert "    --reward.exact-match.casefold  false" in lines
    assert "        ignore upper and lower case" in lines
    assert max(len(line) for line in lines if "/" not in line) <= 60


def test_a_part_is_shown_as_json(program: Program) -> None:
    [shown] = program.json("plugins", "show", "exact_match", "--json")["shown"]
    assert (shown["kind"], shown["distribution"]) == ("reward", "rlcore-text")
    assert (shown["chosen_by"], shown["hook"]) == ("--reward exact_match", "rlcore_rewards")
    [casefold] = [one for one in shown["settings"] if one["flag"] == "--reward.exact-match.casefold"]
    assert casefold["default"] is False
    recipe = program.json("plugins", "show", "grpo", "--json")["shown"][0]
    assert (recipe["parts"]["advantage"], recipe["paper"][:5]) == ("grpo", "https")
    found = program.json("plugins", "show", "exactmatch", "--json", code=2)
    assert "Did you mean 'exact_match'?" in found["error"]


def test_a_part_of_a_file_is_shown_with_its_file(tmp_path: Path, program: Program) -> None:
    file = tmp_path / "brief.py"
    file.write_text(
        "from rlcore import Component, hookimpl\n"
        "def brevity(response):\n    return 1 / (1 + len(response))\n"
        "@hookimpl\ndef rlcore_rewards():\n"
        "    yield Component(name='brevity', factory=f'{__name__}:brevity', summary='')\n"
    )
    out = program("--plugin", str(file), "plugins", "show", "brevity")
    assert f":brevity ({file})" in out
    assert f"  chosen by  --plugin {file} --reward brevity\n" in out
    assert "cannot be found" not in out


def test_two_commands_of_one_name_are_refused(tmp_path: Path, hello: str, program: Program) -> None:
    other = tmp_path / "other.py"
    other.write_text(COMMAND + "\nX = 1\n")
    said = program.refused("--plugin", hello, "--plugin", str(other), "hello")
    assert "command 'hello' is offered by two plugins" in said
    assert "Offered by two plugins." in program("--plugin", hello, "--plugin", str(other), "--help")
    program("--plugin", hello, "--plugin", str(other), "hello", "--help", "--x", "3", code=2)
    last = program("--plugin", hello, "--plugin", str(other), "plugins").splitlines()[-1]
    assert last.startswith("clash: command 'hello' is offered by two")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise OSError('gone')", "OSError: gone"),
        ("raise SystemExit", "SystemExit"),
        ("return ['hello']", "found 'hello', expected a Component, or a click.Command with a name"),
        (
            "yield record(name='No way')",
            "command 'No way': expected a name of lower-case letters, digits, _ and -",
        ),
        (
            "yield record(factory=5)",
            "command 'greet': factory 5, expected a text \"package.module:attribute\"",
        ),
        (
            "yield record(default=True)",
            "command 'greet': expected a Component with name, factory and summary alone",
        ),
    ],
)
def test_a_plugin_whose_commands_fail_costs_a_warning(
    tmp_path: Path, body: str, said: str, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(COMMAND.replace("    yield hello", f"    {body}"))
    program("--plugin", str(bad), "plugins")
    assert program.err.count("warning") == 1
    assert program.err.startswith(f"warning: plugin 'bad.py' of {bad} sha256:")
    assert program.err.endswith(f" cannot give its commands: {said}\n")
    monkeypatch.setenv("RLCORE_STRICT_PLUGINS", "1")
    program("--plugin", str(bad), "--version", code=2)


def test_a_module_that_prints_leaves_the_answer_of_its_command_alone(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "prints_and_greets.py").write_text(f"print('a banner')\n{COMMAND}")
    file = tmp_path / "greet.py"
    file.write_text(COMMAND.replace("yield hello", "yield record()"))
    assert program("--plugin", str(file), "greet") == "hello\n"


def test_a_command_that_is_not_there_is_told_when_strict(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "greet.py"
    file.write_text(COMMAND.replace("yield hello", "yield record(factory='nowhere:hello')"))
    program("--plugin", str(file), "--version")
    monkeypatch.setenv("RLCORE_STRICT_PLUGINS", "1")
    assert "there is no module 'nowhere'" in program.refused("--plugin", str(file), "--version")


def test_broken_plugins_are_listed(tmp_path: Path, hello: str, program: Program) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("print('hello')  # in the way of nobody who reads JSON\nimport no_such_module_here\n")
    last = program("plugins", "--plugin", str(bad)).splitlines()[-1]
    assert last.startswith("broken: bad.py (")
    assert last.endswith("ModuleNotFoundError: No module named 'no_such_module_here'")
    assert program.json("plugins", "--json", "--plugin", str(bad))["broken"][0]["name"] == "bad.py"


@pytest.mark.parametrize("args", [["-p", "grpo", "plugins"], ["plugins", "-p", "no:nothing"]])
def test_a_wrong_switch(args: list[str], program: Program) -> None:
    assert program.refused(*args).startswith(("-p: found 'grpo', expected no:NAME.", "-p no:"))


def test_early_switches_are_taken_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLCORE_PLUGINS", raising=False)
    switches, _, rest = split(
        ["train", "-p", "no:a", "-pno:b", "--plugin=x.py", "--lr", "1", "--", "-p", "no:c"]
    )
    assert switches.off == ("a", "b")
    assert switches.files == (Path("x.py"),)
    assert rest == ["train", "--lr", "1", "--", "-p", "no:c"]


def test_a_function_of_a_file_is_a_file_and_a_name() -> None:
    given = ["--reward", "a.py:f=0.5", "--reward=a.py:g", "--generator", "b/c.py:h", "--data", "x.py:y"]
    given += ["--eval.a.reward", "d.py:i", "--eval.held-out.generator=e.py:j", "--eval.b.data", "x.py:z"]
    switches, functions, rest = split(["train", *given])
    assert [f"{one.kind} {one.at} {one.name}" for one in functions[:2]] == [
        "reward --reward f",
        "reward --reward g",
    ]
    assert switches.files == tuple(map(Path, ("a.py", "b/c.py", "d.py", "e.py")))
    left = ["train", "--reward", "f=0.5", "--reward=g", "--generator", "h", "--data", "x.py:y"]
    assert rest == [*left, "--eval.a.reward", "i", "--eval.held-out.generator=j", "--eval.b.data", "x.py:z"]


@cases("cli: functions")
def test_a_function_that_is_not_there(tmp_path: Path, program: Program, case: Case) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from json import dumps\ndef short(response): return 1\ndef other(x): return 1\n")
    case.check(
        program.refused("eval", "--task", "copy", *case.given.replace("FILE", str(file)).split()), tmp_path
    )


def test_a_function_without_what_makes_rewards_of_functions(tmp_path: Path, program: Program) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def short(response): return 1\n")
    said = "no plugin that is loaded makes rewards of functions; rlcore-functions does: name it in RLCORE"
    found = program.refused("-p", "no:functions", "eval", "--task", "copy", "--reward", f"{file}:short")
    assert f"--reward {file}:short: {said}" in found


def test_a_file_with_a_hook_offers_what_the_hook_names(tmp_path: Path, program: Program) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from rlcore import Component, hookimpl\nasync def generate(ctx, sample): ...\n"
        "@hookimpl\ndef rlcore_generators():\n"
        "    yield Component(name='own', factory=f'{__name__}:generate', summary='one answer')\n"
    )
    assert program.refused("eval", "--task", "copy", "--generator", f"{file}:generate") == (
        f"--generator {file}:generate: rlcore_generators in the file names what it offers; choose "
        f"that by --plugin {file} --generator NAME, or leave the hook out."
    )


def test_a_reward_and_a_generator_of_a_file_may_have_one_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    hooks = [
        f"@hookimpl\ndef rlcore_{kind}s():\n    yield Component(name='both', factory='mine:B', summary='')\n"
        for kind in ("reward", "generator")
    ]
    file.write_text("from rlcore import Component, hookimpl\n" + "".join(hooks))
    plugins = load(Switches(only=(), files=(file,), strict=True))
    for kind in (Kind.REWARD, Kind.GENERATOR):
        Function(kind=kind, at="", file=file, name="both").require(plugins)


def test_a_slow_import_is_named(
    tmp_path: Path, hello: str, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ntime.sleep(0.3)\n")
    monkeypatch.setattr("rlcore.plugins.loader.SLOW_S", 0.2)
    assert program("--plugin", str(slow), "--plugin", hello, "hello") == "hello\n"
    said = r"(?m)^warning: plugin 'slow\.py' of .* takes more than 0\.2 s to import; move slow"
    assert re.search(said, program.err)


def test_no_part_is_imported_that_was_not_chosen() -> None:
    """Of all bundled plugins the records alone: `plugins show` of a part reads the source of its factory."""
    code = (
        "import sys; from rlcore_cli.main import run; run(['plugins', 'show', 'grpo']); "
        "from rlcore.plugins.loader import load; entries = load().registry.entries(); "
        "made = {getattr(one.record, 'factory', '').partition(':')[0] for one in entries}; "
        "print(len(made), sorted(made & set(sys.modules)), file=sys.stderr)"
    )
    done = ran(sys.executable, "-c", code)
    count, _, imported = done.stderr.strip().partition(" ")
    assert int(count) > 40
    assert imported == "[]"


def test_a_closed_pipe_is_quiet() -> None:
    shell = f"{sys.executable} -c 'from rlcore_cli.main import main; main()' plugins --json | true"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
