"""What every command must fulfill, as a suite to subclass. Needs click.

    class TestHello(CommandConformance):
        command = hello

The command is asked for its help, and refuses what it does not know; it is not run.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self
from unittest import SkipTest

from rlcore_testing.conformance import Conformance, Subject

if TYPE_CHECKING:
    import click
    from click.testing import Result

NAME = re.compile(r"[a-z][a-z0-9-]*")
HEAVY = ("torch", "ray", "transformers", "numpy")
USAGE = 2
IMPORT_SECONDS = 60


class CommandConformance(Conformance):
    """Subclass it as `Test…` and give `command`."""

    command: ClassVar[click.Command]
    context: ClassVar[Any] = None
    """What `click.pass_obj` hands it; of `rlcore` it is a `rlcore_cli.program.Program`."""

    @classmethod
    def of(cls, subject: Subject) -> type[Self]:
        return cls.with_values(command=subject.record, context=subject.context)

    # --- the properties --------------------------------------------------------------------------------

    def test_its_name_is_easy_to_type(self) -> None:
        for path, command in self._commands():
            assert NAME.fullmatch(str(command.name)), f"{' '.join(path)}: expected lower-case letters and -"

    def test_it_says_what_it_does(self) -> None:
        """`rlcore --help` has a line for it, and `--help` the rest."""
        for path, command in self._commands():
            assert command.get_short_help_str(), f"{' '.join(path)} has no help"
            told = self._invoke([*path, "--help"])
            assert told.exit_code == 0, f"{' '.join(path)} --help: exit code {told.exit_code}, {_said(told)}"
            assert str(command.help or "").split()[0] in told.output, (
                f"{' '.join(path)} --help lacks its text"
            )

    def test_each_option_has_help(self) -> None:
        import click

        for path, command in self._commands():
            for param in command.params:
                if isinstance(param, click.Option) and not param.hidden:
                    assert param.help, f"{' '.join(path)} {param.opts[0]} has no help"

    def test_an_unknown_option_is_refused(self) -> None:
        """In one sentence, with exit code 2."""
        import click

        for path, command in self._commands():
            if command.context_settings.get("ignore_unknown_options") and any(
                param.nargs == -1 for param in command.params
            ):
                continue  # it takes the options of another program
            told = self._invoke([*path, "--no-such-option"])
            error = told.exception
            refused = isinstance(error, click.ClickException) or getattr(error, "exit_code", 0) == USAGE
            assert refused, f"{' '.join(path)} --no-such-option: {_said(told)}"
            assert "\n" not in str(error).strip(), f"{' '.join(path)} --no-such-option says: {error}"

    def test_its_module_imports_little(self) -> None:
        """`rlcore --help` loads the commands of every plugin."""
        name = (self.command.callback or type(self.command)).__module__
        if name.partition(".")[0] == "click" or sys.modules[name].__spec__ is None:
            raise SkipTest("it is in no module of its own")
        code = f"import sys, {name}; print(*[one for one in {HEAVY!r} if one in sys.modules])"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False
        )
        assert not done.returncode, f"{name} cannot be imported alone: {done.stderr.strip()[-200:]}"
        assert not done.stdout.split(), f"{name} imports {done.stdout.strip()}; import it where it is used"

    # --- how they are checked --------------------------------------------------------------------------

    def _commands(self) -> Iterator[tuple[list[str], click.Command]]:
        """The command and those under it, each with the words that lead to it."""
        yield from _under(self.command, [])

    def _invoke(self, args: Sequence[str]) -> Result:
        import click
        from click.testing import CliRunner

        program = click.Group("rlcore", commands={str(self.command.name): self.command})
        return CliRunner().invoke(program, list(args), obj=self.context, standalone_mode=False)


def _under(command: click.Command, path: list[str]) -> Iterator[tuple[list[str], click.Command]]:
    import click

    here = [*path, str(command.name)]
    yield here, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None, f"{' '.join(here)} {name} is listed, and not there"
            yield from _under(subcommand, here)


def _said(told: Result) -> str:
    return f"{type(told.exception).__name__}: {told.exception}" if told.exception else "it was accepted"
