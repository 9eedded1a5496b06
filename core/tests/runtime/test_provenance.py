"""What a run that goes on compares: the content of its files, and the versions that compute it."""

import hashlib
import json
from pathlib import Path

import pytest
from runs import run_of

from rlcore.api.errors import DataError
from rlcore.runtime.provenance import HASHED_BYTES, changed, fingerprint, fingerprints, versions


def test_a_fingerprint_is_the_size_and_a_hash(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"abc")
    assert fingerprint(str(file)) == f"3:{hashlib.sha256(b'abcabc').hexdigest()}"


@pytest.mark.parametrize("place", [0, -1], ids=["first byte", "last byte"])
def test_a_large_file_is_hashed_at_both_ends(tmp_path: Path, place: int) -> None:
    file, content = tmp_path / "rows.jsonl", bytearray(3 * HASHED_BYTES)
    file.write_bytes(content)
    before = fingerprint(str(file))
    content[place] = 1
    file.write_bytes(content)
    assert fingerprint(str(file)) != before
    assert fingerprint(f"file://{file}") == fingerprint(str(file))


def test_the_files_of_a_mix_and_of_a_task(tmp_path: Path) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in paths:
        path.write_text(json.dumps({"prompt": "1", "label": "1"}) + "\n")
    data = [f"a={paths[0]}:3", f"b={paths[1]}[:1]"]
    resolved = run_of("grpo", {"data": data, "reward": ["token_match"]})
    assert fingerprints(resolved) == {str(path): fingerprint(str(path)) for path in paths}
    assert fingerprints(run_of("grpo")) == {}
    paths[1].unlink()
    with pytest.raises(DataError, match="no such file"):
        fingerprints(resolved)


def test_versions_are_those_of_plugins_and_libraries() -> None:
    found = versions(run_of("grpo"))
    assert {"torch", "megatron-core", "transformers", "plugin core", "plugin grpo"} <= set(found)


def test_a_changed_version_is_a_sentence() -> None:
    then = {"torch": "2.12.0", "plugin grpo": "0.1.0", "plugin acme": "1.0"}
    assert changed(then, {**then, "plugin new": "1"}) is None
    assert changed(then, {"torch": "2.13.0", "plugin grpo": "0.1.0"}) == (
        "Other versions than before: plugin acme 1.0, now gone, torch 2.12.0, now 2.13.0. The run's numbers "
        "may differ from those of an unbroken one."
    )
