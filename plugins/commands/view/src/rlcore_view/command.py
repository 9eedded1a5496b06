"""`rlcore view` and `rlcore report`."""

import contextlib
import os
import signal
import sys
import threading
import webbrowser
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from rlcore import ConfigError, replace_file
from rlcore_view import page
from rlcore_view.answers import Answers
from rlcore_view.report import held
from rlcore_view.run_folder import runs_in
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
    """Show runs in the browser, while they go on or afterwards. It needs only their folders.

    RUN: the folder of a run, or a folder of runs.
    """
    answers = Answers(runs, folders=True)
    try:
        server = PageServer(page.files(), answers.of, answers.note, port=port, idle_s=idle * 60)
    except OSError as error:
        raise ConfigError(f"--port {port}: {HOST} refuses it: {error.strerror}.") from error
    url = server.url + ("#runs" if any(map(runs_in, runs)) else "")
    click.echo(f"{url}\nCtrl-C ends it, and so do {idle:g} minutes without a look.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    with contextlib.suppress(KeyboardInterrupt), TemporaryDirectory(prefix="rlcore-view-") as folder:
        if not no_browser and has_screen():
            open_browser(url, Path(folder))
        server.run()


def has_screen() -> bool:
    """Whether a browser could show a window: one that runs in this terminal would take it over."""
    return sys.platform != "linux" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def open_browser(url: str, folder: Path) -> None:
    """Open `url` by a file in the private `folder`: arguments of a program can be read by other users."""
    file = folder / "rlcore-view.html"
    file.write_text(f'<meta http-equiv="refresh" content="0; url={url}">', encoding="utf-8")
    threading.Thread(target=webbrowser.open, args=(file.as_uri(),), daemon=True).start()


@click.command()
@RUNS
@click.option(
    "--out", "-o", type=click.Path(path_type=Path, dir_okay=False), help="The file.  [RUN/report.html]"
)
def report(runs: tuple[Path, ...], out: Path | None) -> None:
    """Write the page of runs as one HTML file that needs no server and no network."""
    path = out or runs[0] / "report.html"
    text = page.one_file(held(Answers(runs)))
    with replace_file(path) as draft:
        draft.write_text(text, encoding="utf-8")
    click.echo(f"{path} ({len(text) / 1e6:.1f} MB)")
