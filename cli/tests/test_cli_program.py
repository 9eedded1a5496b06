"""The program itself: commands from plugins, early switches, exit codes, and what it imports."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from refusals import Case, cases, sentence

from rlcore.api.records import Kind
from rlcore.plugins.loader import Switches, load
from rlcore_cli.main import ALWAYS, run
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


def test_a_plugin_adds_a_command(hello: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--plugin", hello, "hello"]) == 0
    assert run(["hello", f"--plugin={hello}"]) == 0
    assert capsys.readouterr().out == "hello\nhello\n"


def test_exit_codes(hello: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["hello", "--plugin", hello, "--fail", "run"]) == 1
    assert capsys.readouterr().err == "error: it died.\n"
    assert run(["hello", "--plugin", hello, "--fail", "interrupt"]) == 130
    assert capsys.readouterr().err.strip() == "error: interrupted."
    assert run(["hello", "--plugin", hello, "--nope"]) == 2
    assert capsys.readouterr().err == "error: No such option '--nope'; see rlcore hello --help.\n"


@cases("cli: usage")
def test_a_wrong_usage_says_what_to_do(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(case.given.split()) == 2
    case.check(sentence(capsys.readouterr().err))


def test_a_missing_option_is_told_with_its_help(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ask.py"
    file.write_text(
        "import click\nfrom rlcore import hookimpl\n"
        "@hookimpl\ndef rlcore_commands():\n"
        "    for name, text in (('told', \"The run's 'name'.\"), ('untold', None)):\n"
        "        yield click.Command(name, params=[click.Option(['--of'], required=True, help=text)])\n"
    )
    assert run(["--plugin", str(file), "told"]) == 2
    assert capsys.readouterr().err == "error: --of is missing: The run's 'name'; see rlcore told --help.\n"
    assert run(["--plugin", str(file), "untold"]) == 2
    assert capsys.readouterr().err == "error: --of is missing; see rlcore untold --help.\n"


def test_a_traceback_is_shown_on_request(
    hello: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLCORE_DEBUG", "1")
    assert run(["hello", "--plugin", hello, "--fail", "run"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_own_commands_are_there_without_any_plugin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLCORE_PLUGINS", "")
    assert run(["plugins", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {row["distribution"] for row in listed["plugins"]} == {"rlcore-cli"}
    assert listed["broken"] == []
    assert run(["--help"]) == 0
    assert "between checkpoints and Hugging Face directories" in " ".join(capsys.readouterr().out.split())


def test_a_part_is_shown_with_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plugins", "show", "grpo"]) == 0
    out = capsys.readouterr().out
    assert "algorithm grpo: " in out
    assert "\n  chosen by  --algo grpo\n" in out
    assert "\nadvantage grpo: " in out
    assert "advantage.py)" in out
    assert run(["plugins", "show", "functions"]) == 0
    out = capsys.readouterr().out
    assert "reward_adapter functions: makes a reward of a function with a parameter such as response" in out
    assert "\n  takes      args, sample; args, samples\n" in out
    assert "    --reward.NAME.args  {}  further attributes" in out
    assert run(["plugins", "show", "exact_match"]) == 0
    out = capsys.readouterr().out
    assert "  chosen by  --reward exact_match\n" in out
    assert re.search(r"--reward\.exact-match\.casefold +false +ignore upper and lower case", out)
    assert run(["plugins", "show", "exactmatch"]) == 2
    assert "nothing is called 'exactmatch'. Did you mean 'exact_match'?" in capsys.readouterr().err


def test_help_that_is_too_long_for_the_terminal_goes_below_its_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert run(["plugins", "show", "exact_match"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "    --reward.exact-match.casefold  false" in lines
    assert "        ignore upper and lower case" in lines
    assert max(len(line) for line in lines if "/" not in line) <= 60


def test_a_part_is_shown_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plugins", "show", "exact_match", "--json"]) == 0
    [shown] = json.loads(capsys.readouterr().out)["shown"]
    assert (shown["kind"], shown["distribution"]) == ("reward", "rlcore-text")
    assert (shown["chosen_by"], shown["hook"]) == ("--reward exact_match", "rlcore_rewards")
    [casefold] = [one for one in shown["settings"] if one["flag"] == "--reward.exact-match.casefold"]
    assert casefold["default"] is False
    assert run(["plugins", "show", "grpo", "--json"]) == 0
    recipe = json.loads(capsys.readouterr().out)["shown"][0]
    assert (recipe["parts"]["advantage"], recipe["paper"][:5]) == ("grpo", "https")
    assert run(["plugins", "show", "exactmatch", "--json"]) == 2
    assert "Did you mean 'exact_match'?" in json.loads(capsys.readouterr().out)["error"]


def test_a_part_of_a_file_is_shown_with_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "brief.py"
    file.write_text(
        "from rlcore import Component, hookimpl\n"
        "def brevity(response):\n    return 1 / (1 + len(response))\n"
        "@hookimpl\ndef rlcore_rewards():\n"
        "    yield Component(name='brevity', factory=f'{__name__}:brevity', summary='')\n"
    )
    assert run(["--plugin", str(file), "plugins", "show", "brevity"]) == 0
    out = capsys.readouterr().out
    assert f":brevity ({file})" in out
    assert f"  chosen by  --plugin {file} --reward brevity\n" in out
    assert "cannot be found" not in out


def test_two_commands_of_one_name_are_refused(
    tmp_path: Path, hello: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.py"
    other.write_text(COMMAND + "\nX = 1\n")
    assert run(["--plugin", hello, "--plugin", str(other), "hello"]) == 2
    assert "command 'hello' is offered by two plugins" in capsys.readouterr().err
    assert run(["--plugin", hello, "--plugin", str(other), "--help"]) == 0
    assert "Offered by two plugins." in capsys.readouterr().out
    assert run(["--plugin", hello, "--plugin", str(other), "hello", "--help", "--x", "3"]) == 2
    assert run(["--plugin", hello, "--plugin", str(other), "plugins"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("clash: command 'hello' is offered by two")


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
    tmp_path: Path,
    body: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(COMMAND.replace("    yield hello", f"    {body}"))
    assert run(["--plugin", str(bad), "plugins"]) == 0
    err = capsys.readouterr().err
    assert err.count("warning") == 1
    assert err.startswith(f"warning: plugin 'bad.py' of {bad} sha256:")
    assert err.endswith(f" cannot give its commands: {said}\n")
    monkeypatch.setenv("RLCORE_STRICT_PLUGINS", "1")
    assert run(["--plugin", str(bad), "--version"]) == 2


def test_a_module_that_prints_leaves_the_answer_of_its_command_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "prints_and_greets.py").write_text(f"print('a banner')\n{COMMAND}")
    file = tmp_path / "greet.py"
    file.write_text(COMMAND.replace("yield hello", "yield record()"))
    assert run(["--plugin", str(file), "greet"]) == 0
    assert capsys.readouterr().out == "hello\n"


def test_a_command_that_is_not_there_is_told_when_strict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "greet.py"
    file.write_text(COMMAND.replace("yield hello", "yield record(factory='nowhere:hello')"))
    assert run(["--plugin", str(file), "--version"]) == 0
    monkeypatch.setenv("RLCORE_STRICT_PLUGINS", "1")
    assert run(["--plugin", str(file), "--version"]) == 2
    assert "there is no module 'nowhere'" in capsys.readouterr().err


def test_broken_plugins_are_listed(tmp_path: Path, hello: str, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("print('hello')  # in the way of nobody who reads JSON\nimport no_such_module_here\n")
    assert run(["plugins", "--plugin", str(bad)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("broken: bad.py (")
    assert last.endswith("ModuleNotFoundError: No module named 'no_such_module_here'")
    assert run(["plugins", "--json", "--plugin", str(bad)]) == 0
    assert json.loads(capsys.readouterr().out)["broken"][0]["name"] == "bad.py"


@pytest.mark.parametrize("args", [["-p", "grpo", "plugins"], ["plugins", "-p", "no:nothing"]])
def test_a_wrong_switch(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 2
    assert capsys.readouterr().err.startswith(("error: -p: found 'grpo', expected no:NAME.", "error: -p no:"))


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
def test_a_function_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: Case) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from json import dumps\ndef short(response): return 1\ndef other(x): return 1\n")
    assert run(["eval", "--task", "copy", *case.given.replace("FILE", str(file)).split()]) == 2
    case.check(sentence(capsys.readouterr().err), tmp_path)


def test_a_function_without_what_makes_rewards_of_functions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def short(response): return 1\n")
    assert run(["-p", "no:functions", "eval", "--task", "copy", "--reward", f"{file}:short"]) == 2
    said = "no plugin that is loaded makes rewards of functions; rlcore-functions does: name it in RLCORE"
    assert f"--reward {file}:short: {said}" in capsys.readouterr().err


def test_a_file_with_a_hook_offers_what_the_hook_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from rlcore import Component, hookimpl\nasync def generate(ctx, sample): ...\n"
        "@hookimpl\ndef rlcore_generators():\n"
        "    yield Component(name='own', factory=f'{__name__}:generate', summary='one answer')\n"
    )
    assert run(["eval", "--task", "copy", "--generator", f"{file}:generate"]) == 2
    assert capsys.readouterr().err == (
        f"error: --generator {file}:generate: rlcore_generators in the file names what it offers; choose "
        f"that by --plugin {file} --generator NAME, or leave the hook out.\n"
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
    tmp_path: Path, hello: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ntime.sleep(0.3)\n")
    monkeypatch.setattr("rlcore.plugins.loader.SLOW_S", 0.2)
    assert run(["--plugin", str(slow), "--plugin", hello, "hello"]) == 0
    said = capsys.readouterr()
    assert said.out == "hello\n"
    assert re.search(
        r"(?m)^warning: plugin 'slow\.py' of .* takes more than 0\.2 s to import; move slow", said.err
    )


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
