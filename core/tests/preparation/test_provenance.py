"""What a run is made with: kept at each of its starts, and compared at the next."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from runs import run_of

from rlcore import CheckpointError, DataError, RewardPart
from rlcore.preparation.provenance import FILE, HASHED_BYTES, Provenance, compared, fingerprint


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
    assert Provenance.of(resolved).data == {str(path): fingerprint(str(path)) for path in paths}
    assert Provenance.of(run_of("grpo")).data == {}
    paths[1].unlink()
    with pytest.raises(DataError, match="no such file"):
        Provenance.of(resolved)


def test_the_plugins_are_those_that_are_used(tmp_path: Path) -> None:
    made_with = Provenance.of(run_of("grpo"))
    assert {"rlcore", "torch", "megatron-core", "transformers"} <= set(made_with.libraries)
    assert {"grpo", "megatron"} <= set(made_with.plugins)
    assert "ppo" not in made_with.plugins
    assert made_with.plugins["grpo"]["distribution"] == "rlcore-grpo"
    assert made_with.plugins["grpo"]["url"].startswith("file:")
    assert {"rlcore", "rlcore_grpo", "rlcore_megatron"} <= set(made_with.code)
    assert "rlcore_toolkit" in made_with.code, "which plugins share"


def test_a_part_and_what_makes_a_reward_of_a_function_are_code_of_the_run() -> None:
    resolved = run_of("grpo")
    of_reward = {"json", "rlcore_functions"}
    assert not of_reward & Provenance.of(resolved).code.keys()
    reward = RewardPart(name="f", factory="json.tool:main", adapter="rlcore_functions.reward:factory_of")
    assert of_reward <= Provenance.of(replace(resolved, rewards=(reward,))).code.keys()


def test_each_start_has_its_line_and_that_of_the_checkpoint_counts(tmp_path: Path) -> None:
    """The start of a checkpoint is the last one before its step; one that came to nothing is at its step."""
    first = Provenance.of(run_of("grpo"))
    assert Provenance.of_start(tmp_path, 4) is None
    first.append(tmp_path, 0)
    second, failed = (replace(first, libraries={"torch": version}) for version in ("3.0", "4.0"))
    second.append(tmp_path, 4)
    failed.append(tmp_path, 6)
    assert [json.loads(line)["step"] for line in (tmp_path / FILE).read_text().splitlines()] == [0, 4, 6]
    assert Provenance.of_start(tmp_path, 4) == first
    assert Provenance.of_start(tmp_path, 6) == second
    assert Provenance.of_start(tmp_path, 8) == failed


def test_a_line_that_was_cut_short_does_not_count(tmp_path: Path) -> None:
    made_with = Provenance.of(run_of("grpo"))
    made_with.append(tmp_path, 0)
    whole = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(whole + whole[:50])
    assert Provenance.of_start(tmp_path, 2) == made_with
    made_with.append(tmp_path, 2)
    assert [json.loads(line)["step"] for line in (tmp_path / FILE).read_text().splitlines()] == [0, 2]
    (tmp_path / FILE).write_text('{"step": 0}\n')
    with pytest.raises(CheckpointError, match="damaged; without it the run goes on"):
        Provenance.of_start(tmp_path, 2)


def test_a_resume_compares(tmp_path: Path) -> None:
    file = {"distribution": "/a/mine.py", "version": "sha256:1", "origin": "/a/mine.py"}
    then = Provenance(
        libraries={"torch": "2.12.0"},
        plugins={"acme": {"version": "1.0"}, "mine.py": file},
        code={"acme": "1", "gone": "1"},
        data={"rows.jsonl": "1:a"},
    )
    then.append(tmp_path, 0)
    more = {**then.plugins, "new": {"version": "1"}}
    assert compared(replace(then, plugins=more), tmp_path, 2) is None
    assert compared(
        replace(then, libraries={"torch": "2.13.0"}, plugins={}, code={"acme": "2"}), tmp_path, 2
    ) == (
        "Changed since the checkpoint was made: plugin acme 1.0, now gone, plugin mine.py sha256:1, now "
        "gone, torch 2.12.0, now 2.13.0, the code of acme. The run's numbers may differ from those of an "
        "unbroken one."
    )
    with pytest.raises(
        CheckpointError, match=r"plugin mine\.py has changed since the run was started; bring"
    ):
        compared(replace(then, plugins={"mine.py": {**file, "version": "sha256:2"}}), tmp_path, 2)
    with pytest.raises(CheckpointError, match=r"rows\.jsonl: its content has changed"):
        compared(replace(then, data={"rows.jsonl": "1:b"}), tmp_path, 2)
    (tmp_path / FILE).unlink()
    assert "is gone, so nobody knows" in (compared(then, tmp_path, 2) or "")
