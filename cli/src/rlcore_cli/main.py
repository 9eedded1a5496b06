"""The `rlcore` program: loads the plugins, collects their commands, and turns errors into one sentence."""

import errno
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from rlcore.api.errors import PluginError, RlcoreError, did_you_mean
from rlcore_cli import __version__, plugin
from rlcore_cli.program import Commands, Program, early_options, split, start
from rlcore_machine import Terminated, end_process

INTERRUPTED, TERMINATED = 130, 143
USAGE = 2
EXIT_CODES = {
    0: "done; also if SIGTERM or SIGHUP ended the run, after a checkpoint",
    1: "the run failed, or the answer is no: nothing fits, a property fails",
    USAGE: "something that you gave is wrong: a setting, a file, a package",
    INTERRUPTED: "Ctrl-C",
    TERMINATED: "SIGTERM or SIGHUP, before there was anything to save",
}
ALWAYS = {"cli": plugin}
"""The plugin that no switch leaves out."""
AS_JSON = "--json"
"""With it, a command ends with one JSON object on stdout; an error is one too."""


def main() -> NoReturn:
    """The console script."""
    code = run(sys.argv[1:])
    # All is said, and Ctrl-C while Python ends would make another exit code of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_process(code)


def run(args: Sequence[str]) -> int:
    """The exit code of `rlcore ARGS`, one of `EXIT_CODES`."""
    try:
        switches, functions, rest = split(args)
        program = start(switches, ALWAYS, functions)
        code = group(program).main(args=rest, prog_name="rlcore", standalone_mode=False, obj=program)
        sys.stdout.flush()
    except RlcoreError as error:
        if AS_JSON in args:
            print(json.dumps({**error.summary, "error": str(error)}), flush=True)
        return _fail(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return USAGE
    except click.ClickException as error:
        sentence = _usage(error)
        if AS_JSON in args:
            print(json.dumps({"error": sentence}), flush=True)
        return _fail(sentence, USAGE)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted.", INTERRUPTED)
    except Terminated:
        return _fail("terminated.", TERMINATED)
    except BrokenPipeError:
        _silence()
        return 1
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # of other wrong paths pathlib says: not there
            raise
        return _fail(f"{error.filename}: {error.strerror}.", USAGE)
    return code if isinstance(code, int) else 0


def group(program: Program) -> click.Group:
    """The program's command group, with every plugin's commands."""
    commands = {str(command.name): command for _, command in program.commands}
    commands |= {name: _clashing(name, sentence) for name, sentence in program.command_clashes.items()}
    root = Commands(
        "rlcore",
        commands=commands,
        params=early_options(),
        help="Reinforcement-learning post-training of language models, made of plugins.",
        epilog="The flags of a run: rlcore train --algo NAME --help",
    )
    return click.version_option(__version__, prog_name="rlcore")(root)


def _clashing(name: str, sentence: str) -> click.Command:
    """What stands for a command that two plugins offer: it is refused, and all others work."""

    def refuse(_: Any) -> NoReturn:
        raise PluginError(sentence)

    return click.Command(
        name,
        callback=click.pass_context(refuse),
        short_help="Offered by two plugins.",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
        params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED, expose_value=False)],
    )


def _usage(error: click.ClickException) -> str:
    """click's sentence, with what is missing, which commands there are, or where the help is."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return error.format_message()
    sentence = error.format_message().removesuffix(".")
    if isinstance(error, click.MissingParameter) and error.param is not None:
        help_text = error.param.help if isinstance(error.param, click.Option) else None
        hint = error.param.get_error_hint(context).replace("'", "")
        sentence = f"{hint} is missing{f': {help_text}' if help_text else ''}".removesuffix(".")
    elif isinstance(error, click.NoSuchOption):
        # click names several, by their letters alone
        hint = did_you_mean(
            error.option_name, (name for param in context.command.params for name in param.opts)
        )
        sentence = f"No such option {error.option_name!r}{f'.{hint}' if hint else ''}"
    elif isinstance(error, click.BadParameter):
        sentence = sentence.replace("a valid integer range", "a whole number").replace(
            "a valid float range", "a number"
        )
    elif sentence.startswith("No such command") and not sentence.endswith("?"):
        assert isinstance(context.command, click.Group)
        sentence += f", expected one of {', '.join(context.command.list_commands(context))}"
    return f"{sentence}{' See' if sentence.endswith('?') else '; see'} {context.command_path} --help."


def _fail(sentence: str, code: int) -> int:
    if os.environ.get("RLCORE_DEBUG", "") not in ("", "0"):
        traceback.print_exc()
    print(f"error: {sentence}", file=sys.stderr)
    return code


def _silence() -> None:
    """Keep the interpreter from complaining about the closed pipe once more as it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
