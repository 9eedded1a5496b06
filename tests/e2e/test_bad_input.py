"""What a user gets wrong: one clear sentence, exit code 2, no traceback, and nothing left behind."""

import json
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import SMALL, Run
from inputs import chats, make_model, write_jsonl
from layouts import STEPS, Layouts
from refusals import Case, Refused, cases, sentence, unchanged

from rlcore import write_atomically
from rlcore_cli.main import run as rlcore

TRAIN = ("train", "--algo", "grpo", "--model", "qwen3")
OWN_SIZES = ("--max-prompt-tokens", "96", "--max-response-tokens", "24")
LONG = "red " * 120


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test starts neither an engine nor a worker; the fork server of a run ends with it."""
    started: list[Any] = []
    begin = subprocess.Popen.__init__

    def noted(process: Any, *args: Any, **known: Any) -> None:
        if "fork_server" not in str(args):
            started.append((args, known))
        begin(process, *args, **known)

    monkeypatch.setattr(subprocess.Popen, "__init__", noted)
    yield
    assert not started


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that trains."""
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def spoiled(model: Path, tmp_path: Path, case: Case) -> Path:
    """A copy of it, as the function that the test's case names leaves it, or with the case's config."""
    copy = shutil.copytree(model, tmp_path / "spoiled")
    if isinstance(case.given, str):
        globals()[case.given](copy)
    else:
        file = copy / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **case.given}))
    return copy


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prompt file that trains."""
    return write_jsonl(tmp_path_factory.mktemp("data") / "good.jsonl", chats(8, seed=3))


@cases("train: names")
def test_wrong_names(refused: Refused, case: Case) -> None:
    case.check(refused(*case.given))


@cases("train: flags")
def test_wrong_flags(refused: Refused, case: Case) -> None:
    case.check(refused(*TRAIN, *case.given))


@cases("train: files")
def test_wrong_files(refused: Refused, tmp_path: Path, case: Case) -> None:
    file = tmp_path / "run.toml"
    file.write_text(case.given)
    case.check(refused(*TRAIN, "--config", str(file)), tmp_path)


@cases("train: data")
def test_wrong_data(refused: Refused, model: Path, tmp_path: Path, case: Case) -> None:
    name, content = case.given
    file = tmp_path / name
    if content is not None:
        file.write_text(content.replace("LONG", LONG))
    arguments = ("--model", str(model), "--data", str(file), "--reward", "f1", *OWN_SIZES)
    case.check(refused("train", "--algo", "grpo", *arguments), tmp_path)


@cases("train: labels")
def test_labels_that_a_reward_cannot_judge(refused: Refused, model: Path, tmp_path: Path, case: Case) -> None:
    reward, row = case.given
    file = write_jsonl(tmp_path / "rows.jsonl", [row])
    arguments = ("--model", str(model), "--data", str(file), "--reward", reward, *OWN_SIZES)
    case.check(refused("train", "--algo", "grpo", *arguments), tmp_path)


def test_a_stop_where_nothing_is_sampled(refused: Refused, model: Path, tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "red", "response": "blue"}])
    arguments = ("--model", str(model), "--data", str(file), "--stop", "x", *OWN_SIZES)
    _says(refused("train", "--algo", "sft", *arguments), "--stop", "'x'")


def test_an_empty_table(refused: Refused, model: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / "empty.parquet"
    pq.write_table(pa.table({"prompt": pa.array([], pa.string()), "label": pa.array([], pa.string())}), file)
    arguments = ("--model", str(model), "--data", str(file), "--reward", "f1", *OWN_SIZES)
    _says(refused("train", "--algo", "grpo", *arguments), "empty.parquet", "no prompts")


def without_config(model: Path) -> None:
    (model / "config.json").unlink()


def without_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()


def cut_weights(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


def with_a_missing_file(model: Path) -> None:
    names = {"model.embed_tokens.weight": "model.safetensors", "more": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def with_a_small_vocabulary(model: Path) -> None:
    """A model that is whole, and a tokenizer that knows more tokens than it."""
    make_model(model, vocab_size=50)


def without_tokenizer(model: Path) -> None:
    for file in model.glob("tokenizer*"):
        file.unlink()


@pytest.mark.usefixtures("no_process")
@cases("train: models")
def test_wrong_models(refused: Refused, spoiled: Path, data: Path, case: Case) -> None:
    own = ("--model", str(spoiled), "--data", str(data), "--reward", "f1", *OWN_SIZES)
    two = ("--megatron.tensor-model-parallel-size", "2")
    case.check(refused("train", "--algo", "grpo", *own, *two), spoiled)


@pytest.mark.usefixtures("no_process")
@cases("train: families")
def test_a_family_that_there_is_not_yet(refused: Refused, tmp_path: Path, case: Case) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [case.given]}))
    case.check(refused("train", "--algo", "grpo", "--model", str(tmp_path)), tmp_path)


@pytest.mark.parametrize("command", [("train", "--algo", "grpo"), ("eval",)])
def test_a_command_says_what_it_does_before_its_imports(
    command: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("none.jsonl").write_text("")
    assert rlcore([*command, "--model", "qwen3", "--data", "none.jsonl", "--reward", "f1"]) == 2
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.endswith("] Loading torch and the rest")
    assert second.endswith("] Checking the model, the data and the parts")


FAMILY = """
from rlcore import ModelFamily, hookimpl

@hookimpl
def rlcore_models():
    yield ModelFamily(
        name="third", factory="third_bridge:Bridge", summary="x", trainer="megatron",
        architectures=("ThirdForCausalLM",), preset="rlcore_qwen.tiny:tiny",
    )
"""


@pytest.mark.usefixtures("no_process")
def test_a_preset_whose_bridge_cannot_be_imported(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "third.py").write_text(FAMILY)
    (tmp_path / "third_bridge.py").write_text("import nothing_of_the_name\nclass Bridge: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = refused("train", "--plugin", str(tmp_path / "third.py"), "--algo", "grpo", "--model", "third")
    _says(
        text, "'third' cannot be loaded from 'third_bridge:Bridge'", "No module named 'nothing_of_the_name'"
    )


@pytest.mark.usefixtures("no_process")
def test_experts_that_the_ranks_do_not_divide(refused: Refused, tmp_path: Path) -> None:
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    flags = ("--task", "copy", "--ranks", "3", "--megatron.expert-model-parallel-size", "3")
    text = refused("train", "--algo", "grpo", "--model", str(tmp_path), *flags)
    _says(text, "--megatron.expert-model-parallel-size", "3", "divisor of the model's experts (8)")


@pytest.mark.usefixtures("no_process")
@cases("eval: models")
def test_an_evaluation_of_a_wrong_model(refused: Refused, spoiled: Path, data: Path, case: Case) -> None:
    case.check(refused("eval", "--model", str(spoiled), "--data", str(data), *OWN_SIZES), spoiled)


def test_a_path_that_is_no_model(refused: Refused, tmp_path: Path) -> None:
    for path in ("./nowhere", str(tmp_path / "nowhere")):
        _says(refused("train", "--algo", "grpo", "--model", path), "--model", path)


def test_a_reference_that_the_policy_cannot_be_copied_into(
    refused: Refused, model: Path, data: Path, tmp_path: Path
) -> None:
    other = make_model(tmp_path / "other", hidden_size=64)
    own = ("--model", str(model), "--data", str(data), "--reward", "f1", *OWN_SIZES)
    reference = ("--kl-coef", "0.1", "--reference.model", str(other), "--reference.refresh-every", "1")
    _says(
        refused("train", "--algo", "grpo", *own, *reference),
        "--reference.model",
        str(other),
        "lm_head.weight",
        ", 64)",
        ", 128)",
    )


def test_a_run_folder_in_use(refused: Refused, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    for taken in (folder, folder / "mine.txt"):
        _says(refused(*TRAIN, "--run-dir", str(taken)), f"--run-dir: '{taken}' is neither new nor an empty")
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


def test_an_engine_that_is_not_installed(refused: Refused, tmp_path: Path) -> None:
    engine = ("--engine", "sglang", "--engine.python")
    _says(refused(*TRAIN, *engine, sys.executable), "sglang is not installed", "pip install 'sglang")
    nowhere = str(tmp_path / "python")
    _says(refused(*TRAIN, *engine, nowhere), "--engine.python", nowhere)
    _says(refused(*TRAIN, *engine, sys.executable, "--sglang.tp-siez", "2"), "tp-siez", "tp_size")
    _says(refused(*TRAIN, *engine, sys.executable, "--sglang.port", "1"), "--sglang.port", "--engine.port")


def test_an_address_where_no_ray_answers(run: Run, tmp_path: Path) -> None:
    """Ray is the only part that is given an address; every port of an engine is chosen by rlcore."""
    folder = tmp_path / "run"
    with socket.socket() as taken:  # nobody listens, and nobody else can begin to
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = run(*TRAIN, "--cluster.address", address, "--run-dir", str(folder), code=2)
    _says(sentence(command.stderr), "--cluster.address", address)
    assert not folder.exists()


@pytest.mark.timeout(600)
def test_folders_that_cannot_be_resumed(refused: Refused, layouts: Layouts, tmp_path: Path) -> None:
    run_dir = shutil.copytree(layouts.run("tp2_sp"), tmp_path / "run")
    checkpoints = run_dir / "checkpoints"
    resume = ("train", "--resume", str(run_dir))
    _says(refused("train", "--resume", str(tmp_path / "none")), "--resume", "none", "run.toml")
    _says(refused("train", "--resume", str(run_dir / "samples")), "--resume", "samples", "run.toml")
    _says(refused(*resume, "--model", "qwen3"), "--model", "qwen3")
    _says(refused(*resume, "--run-dir", str(tmp_path / "other")), "--run-dir", "--resume", str(run_dir))

    half = shutil.copytree(checkpoints / str(STEPS), checkpoints / "9")
    (half / "complete.json").unlink()
    shutil.copytree(checkpoints / str(STEPS), checkpoints / "10.partial")
    with unchanged(run_dir):
        done = f"already done {STEPS} steps, and it is to end after 1; to go on, raise --steps above {STEPS}."
        _says(refused(*resume, "--steps", "1"), str(checkpoints / str(STEPS)), done)

    for older in range(1, STEPS):
        shutil.rmtree(checkpoints / str(older))
    state = checkpoints / str(STEPS) / "state.json"
    saved = json.loads(state.read_text())
    state.write_text(json.dumps({**saved, "model": {**saved["model"], "hidden_size": 64}}))
    _says(refused(*resume, "--steps", "3"), str(state), "is damaged", "its size is")
    with write_atomically(state.parent) as folder:  # a marker for the files as they are now
        ignore = shutil.ignore_patterns("complete.json")
        shutil.copytree(state.parent, folder, dirs_exist_ok=True, ignore=ignore)
    _says(refused(*resume, "--steps", "3"), str(state.parent), "hidden_size", "64", "128")
    state.write_text(json.dumps(saved)[:-20])
    _says(refused(*resume, "--steps", "3"), str(state))


TIGHT = str(Path(__file__).with_name("tight_disk.py"))


def test_a_disk_without_room_leaves_no_half_written_checkpoint(run: Run, tmp_path: Path) -> None:
    """The train worker may write its weights for the engines, and no file as large as a checkpoint's."""
    folder = tmp_path / "run"
    flags = ("--plugin", TIGHT, "--loss", "tight", "--steps", "1", "--run-dir", str(folder))
    command = run(*TRAIN, *SMALL, *flags, code=2)
    _says(sentence(command.stderr), str(folder / "checkpoints" / "1"), "could not be written")
    assert (folder / "metrics.jsonl").is_file()
    assert not list((folder / "checkpoints").iterdir())


def test_a_disk_without_room_from_the_start(refused: Refused, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        text = refused(*TRAIN, "--run-dir", str(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    _says(text, str(folder), "could not be written")
    assert not folder.exists()


def _says(text: str, *parts: str) -> None:
    for part in parts:
        assert part in text, text
