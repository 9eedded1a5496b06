"""From run scripts and lists of arguments to flags."""

import tomllib
from pathlib import Path

import pytest
from refusals import Case, cases

from rlcore.api.errors import ConfigError
from rlcore_import.arguments import Arguments, of_script, of_words, variables

SCRIPT = """#!/bin/bash
pkill -9 python
NODES=4
GPUS=${GPUS:-$(nvidia-smi -L | wc -l)}
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
source "${SCRIPT_DIR}/models/tiny.sh"

ROLLOUT_ARGS=(
   --prompt-data ${DATA:-/data}/train.jsonl
   # --rm-type math
   --rm-type deepscaler  # a rule
   --rollout-batch-size $((NODES * 8))
   --sglang-cuda-graph-bs 1 2 $(seq 8 8 24)
)
ARGS=(--lr 1e-6 --wandb-key ${WANDB_KEY})
UNUSED_ARGS=(--seed 7)
DATA="/elsewhere"

ray job submit --address="http://127.0.0.1:8265" \\
   --runtime-env-json="${ENV}" \\
   -- python3 train_async.py --actor-num-nodes $NODES --actor-num-gpus-per-node ${GPUS} \\
   --rollout-top-k -1 \\
   ${MODEL_ARGS[@]} "${ROLLOUT_ARGS[@]}"
   ${ARGS[@]}
"""


def read(folder: Path, text: str) -> Arguments:
    """What is in a run script."""
    path = folder / "run.sh"
    path.write_text(text)
    return of_script(path, {})


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.sh").write_text(
        "LAYERS=3\nMODEL_ARGS=(\n  --num-layers $((LAYERS + 1))\n)\n"
    )
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    return path


def test_a_script_gives_its_flags(script: Path) -> None:
    found = of_script(script, {})
    assert found.entry == "train_async.py"
    assert found.flags == {
        "--actor-num-nodes": ("4",),
        "--actor-num-gpus-per-node": ("${GPUS}",),
        "--rollout-top-k": ("-1",),
        "--num-layers": ("4",),
        "--prompt-data": ("/data/train.jsonl",),
        "--rm-type": ("deepscaler",),
        "--rollout-batch-size": ("32",),
        "--sglang-cuda-graph-bs": ("1", "2", "8", "16", "24"),
        "--lr": ("1e-6",),
        "--wandb-key": ("${WANDB_KEY}",),
    }


@pytest.mark.parametrize(
    "lines",
    [
        ['ray job submit --runtime-env-json=\'{"env_vars": {"A_FLAG": "1"}}\' -- python3 train.py --lr 1'],
        [
            'J="{\\"env_vars\\": {\\"A_FLAG\\": \\"1\\"}}"',
            'ray job submit --runtime-env-json="$J" -- python train.py --lr 1',
        ],
        [
            'J="{\n \\"env_vars\\": {\\"A_FLAG\\": \\"1\\", \\"C\\": \\"${OPEN}\\"}}"',
            'ray job submit --runtime-env-json="$J" -- python train.py --lr 1',
        ],
        ["export A_FLAG=1", "python3 train.py --lr 1"],
        ["A_FLAG=1", "export A_FLAG", "python3 train.py --lr 1"],
        ["A_FLAG=1 python3 train.py --lr 1"],
        ["env A_FLAG=1 python3 train.py --lr 1"],
    ],
)
def test_the_environment_of_the_program(tmp_path: Path, lines: list[str]) -> None:
    found = read(tmp_path, "\n".join(["B_FLAG=2", *lines]) + "\n").environment
    assert {**found, "C": ""} == {"A_FLAG": "1", "C": ""}


def test_a_variable_may_be_given(script: Path) -> None:
    found = of_script(script, variables(["GPUS=8", "NODES=2"]))
    assert found.flags["--actor-num-gpus-per-node"] == ("8",)
    assert found.flags["--rollout-batch-size"] == ("16",)


def test_a_list_of_arguments() -> None:
    found = of_words(
        ["python3", "train.py", "--lr=2e-6", "--colocate", "--eval-prompt-data", "aime", "a.jsonl"]
    )
    assert found.entry == "train.py"
    assert found.flags == {"--lr": ("2e-6",), "--colocate": (), "--eval-prompt-data": ("aime", "a.jsonl")}


@pytest.mark.parametrize(
    "command",
    [
        "PYTHONPATH=/m CUDA_DEVICE_MAX_CONNECTIONS=1 python3 train.py --seed 3 ${ARGS[@]}",
        'python3 train.py --seed 3 "${ARGS[@]}" 2>&1 | tee run.log',
        'python3 train.py --seed 3 "${ARGS[@]}" "$@" > run.log &',
        "cd /slime && python3 train.py --seed 3 ${ARGS[@]} && echo done",
    ],
)
def test_what_belongs_to_the_shell_is_no_value(tmp_path: Path, command: str) -> None:
    found = read(tmp_path, f'ARGS=(\n --rollout-stop "<|end|>" "a;b"\n)\n{command}\n')
    assert found.flags == {"--seed": ("3",), "--rollout-stop": ("<|end|>", "a;b")}


def test_a_command_at_the_end_of_an_array_does_not_hide_its_bracket(tmp_path: Path) -> None:
    arrays = "A=(--seed 3)\nA+=(--lr $(rate))\nA+=(--n $((2*2)))\n"
    found = read(tmp_path, f"{arrays}python3 train.py ${{A[@]}}\necho 5\n")
    assert found.flags == {"--seed": ("3",), "--lr": ("$(rate)",), "--n": ("4",)}


LR = {"--lr": ("3",)}
READ_AS_BASH_DOES = tomllib.loads(Path(__file__).with_name("read_as_bash.toml").read_text())


@pytest.mark.parametrize("case", READ_AS_BASH_DOES)
def test_it_is_read_as_bash_does(case: str, tmp_path: Path) -> None:
    found = read(tmp_path, READ_AS_BASH_DOES[case]["script"]).flags
    assert {name: list(values) for name, values in found.items()} == READ_AS_BASH_DOES[case]["flags"]


@pytest.mark.parametrize(
    "named",
    [
        '"$(dirname "$0")/models/tiny.sh"',
        '"$(dirname -- "${BASH_SOURCE[0]}")"/models/tiny.sh',
        '"${BASH_SOURCE%/*}/models/tiny.sh"',
        '"$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/models/tiny.sh"',
        '"$(cd -- "$(dirname -- "$0")/models" &>/dev/null && pwd)/tiny.sh"',
        "models/tiny.sh",
        '"$HERE/models/tiny.sh"',
        "/root/slime/scripts/models/tiny.sh",
    ],
)
def test_a_script_is_found_beside_the_one_that_reads_it(named: str, script: Path) -> None:
    script.write_text(f'source {named}\npython3 train.py "${{MODEL_ARGS[@]}}"\n')
    assert of_script(script, {}).flags == {"--num-layers": ("4",)}


@cases("import: scripts")
def test_what_cannot_be_read_is_one_sentence(case: Case, tmp_path: Path) -> None:
    with case.refused(ConfigError, tmp_path):
        read(tmp_path, case.given[1])


@pytest.mark.parametrize(
    "line", ["source ~/.bashrc", ". /opt/venv/bin/activate", "if [ -f x ]; then . x; fi"]
)
def test_a_file_without_flags_need_not_be_there(line: str, tmp_path: Path) -> None:
    assert read(tmp_path, f"{line}\npython3 train.py --lr 3\n").flags == LR


NO_FLAGS = "found no flags, expected a run script"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, NO_FLAGS) for text in ("", "echo hello\n", "X=1\nY=(1 2)\n")),
        ("source run.sh\nX_ARGS=(--lr 1)\n", r"run\.sh: found a script that reads itself"),
    ],
)
def test_what_is_no_script_of_its_own_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, text)


def test_a_file_that_the_script_writes_is_read_with_it(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "GPUS=64\nFILE=$(mktemp /tmp/x_XXXX.yaml)\nOTHER=/tmp/other.yaml\n"
        "cat > \"${FILE}\" <<END\na: ${GPUS}\n--lr: 3\nEND\ncat >$OTHER <<-'X'\nb: ${GPUS}\nX\n"
        'ARGS=(--sglang-config "$FILE" --lr 1 --data $OTHER)\npython3 train.py ${ARGS[@]}\n',
    )
    assert found.flags == {"--sglang-config": ("FILE",), "--lr": ("1",), "--data": ("/tmp/other.yaml",)}
    assert found.files == {"FILE": "a: 64\n--lr: 3", "/tmp/other.yaml": "b: ${GPUS}"}


@pytest.mark.parametrize("text", ["X", "=3", "a b=3"])
def test_a_variable_has_a_name_and_a_value(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--var: found .*, expected NAME=VALUE"):
        variables([text])
