"""`rlcore view` and `rlcore report`."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from rlcore import ConfigError
from rlcore_view import page
from rlcore_view.answers import Answers
from rlcore_view.report import held
from rlcore_view.server import HOST, PageServer

RUNS = click.argument("runs", metavar="RUN…", nargs=-1, required=True, type=click.Path(path_type=Path))


@click.command()
@RUNS
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Port on loopback.  [a free one]")
@click.option(
    "--idle",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="End when nobody has asked for this many minutes.",
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def view(runs: tuple[Path, ...], port: int, idle: float, no_browser: bool) -> None:
    """Show runs in the browser, from their folders alone, while they go on or after."""
    answers = Answers(runs)
    try:
        server = PageServer(page.files(), answers.of, port=port, idle_s=idle * 60)
    except OSError as error:
        raise ConfigError(f"--port {port}: {HOST} refuses it: {error.strerror}.") from error
    click.echo(f"{server.url}\nCtrl-C ends it, and so do {idle:g} minutes without a look.")
    if not no_browser:
        webbrowser.open(server.url)
    try:
        server.run()
    except KeyboardInterrupt:
        click.echo()


@click.command()
@RUNS
@click.option(
    "--out", "-o", type=click.Path(path_type=Path, dir_okay=False), help="The file.  [RUN/report.html]"
)
def report(runs: tuple[Path, ...], out: Path | None) -> None:
    """Write the page of runs as one HTML file that needs no server and no network."""
    path = out or runs[0] / "report.html"
    text = page.one_file(held(Answers(runs)))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {path}: cannot be written: {error.strerror}.") from error
    click.echo(f"{path} ({len(text) / 1e6:.1f} MB)")
