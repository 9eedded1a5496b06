"""The server of `rlcore view`: who may ask for what."""

import contextlib
import gzip
import http.client
import json
import re
import socket
import struct
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlcore_view import page
from rlcore_view.answers import Answers
from rlcore_view.server import PageServer


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    answers = Answers([folder])
    server = PageServer(page.files(), answers.of, answers.note, port=0, idle_s=2)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server.url
    thread.join(20)
    assert not thread.is_alive(), "it ends when nobody asks"


def get(url: str, data: bytes | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, data, headers={"Accept-Encoding": "gzip"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            body = answer.read()
            packed = answer.headers["Content-Encoding"] == "gzip"
            return answer.status, gzip.decompress(body) if packed else body
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_who_has_the_token_gets_the_page_and_nothing_else(url: str, folder: Path) -> None:
    status, html = get(url)
    assert status == 200
    for name in re.findall(r'(?:src|href)="([^":]+)"', html.decode()):
        assert get(url + name)[0] == 200, name
    assert json.loads(get(f"{url}data/run/0/series")[1])["axes"]["step"] == [1, 2, 3]
    assert json.loads(get(f"{url}data/run/0/logs/engine%200.log")[1])["text"] == "ready\n"
    host = url.rsplit("/", 2)[0]
    for path in ("", "/", "/wrong/", f"/{'x' * 32}/data/runs", "/é/"):
        assert get(host + urllib.parse.quote(path))[0] == 403
    for path in (
        "run/1/series",
        "run/0/nothing",
        "run/-1/series",
        "run/0/samples/%2e%2e/run",
        "run/0/logs/../run.toml",
    ):
        assert get(f"{url}data/{path}")[0] == 404
    assert b"hunter2" not in get(f"{url}data/run/0/settings")[1]
    (folder / "samples" / "eval-0.jsonl").unlink()
    (folder / "samples" / "eval-0.jsonl").mkdir()
    assert get(f"{url}data/run/0/samples/eval-0/0")[0] == 500


def test_the_one_thing_to_be_written_is_a_note(url: str, folder: Path) -> None:
    note = b'{"tags": ["lr"], "note": "best so far"}'
    before = sorted(folder.rglob("*"))
    for path, data, status in (
        ("note/run/1", note, 404),
        ("note/run/0/series", note, 404),
        ("note/..", note, 404),
        ("data/run/0/settings", note, 404),
        ("note/run/0", b"{", 400),
        ("note/run/0", b'{"tags": ["lr"], "note": "", "path": "run.toml"}', 400),
        ("note/run/0", b'{"tags": [1], "note": ""}', 400),
        ("note/run/0", b" " * 2**17, 413),
    ):
        with contextlib.suppress(urllib.error.URLError):  # the body is not read
            assert get(url + path, data)[0] == status, path
    assert get(url.rsplit("/", 2)[0] + "/wrong/note/run/0", note)[0] == 403
    assert sorted(folder.rglob("*")) == before
    assert get(f"{url}note/run/0", note)[0] == 200
    assert json.loads(get(f"{url}data/runs")[1])[0]["tags"] == ["lr"]
    assert json.loads((folder / "notes.json").read_text()) == json.loads(note)


def test_a_browser_may_leave_between_two_requests(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    host, _, path = url.removeprefix("http://").partition("/")
    before = set(threading.enumerate())
    with contextlib.closing(http.client.HTTPConnection(host, timeout=20)) as connection:
        connection.request("GET", f"/{path}")
        assert connection.getresponse().read()
        [handler] = set(threading.enumerate()) - before
        linger = struct.pack("ii", 1, 0)  # what is left is dropped: the server sees a reset
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.join(20)
    assert not handler.is_alive()
    assert capsys.readouterr().err == ""


def test_the_page_loads_nothing_from_elsewhere() -> None:
    own = {name: content.decode() for name, content in page.files().items() if name != page.PLOTLY}
    assert not [name for name, content in own.items() if re.search(r"https?://", content)]
