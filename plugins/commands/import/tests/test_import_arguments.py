"""From run scripts and lists of arguments to flags."""

from pathlib import Path

import pytest

from rlcore.api.errors import ConfigError
from rlcore_import.arguments import of_script, of_words, variables

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
    path = tmp_path / "run.sh"
    path.write_text(f'ARGS=(\n --rollout-stop "<|end|>" "a;b"\n)\n{command}\n')
    assert of_script(path, {}).flags == {"--seed": ("3",), "--rollout-stop": ("<|end|>", "a;b")}


def test_a_command_at_the_end_of_an_array_does_not_hide_its_bracket(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("A=(--seed 3)\nA+=(--lr $(rate))\nA+=(--n $((2*2)))\npython3 train.py ${A[@]}\necho 5\n")
    assert of_script(path, {}).flags == {"--seed": ("3",), "--lr": ("$(rate)",), "--n": ("4",)}


LR = {"--lr": ("3",)}
READ_AS_BASH_DOES = {
    "a comment": ("A=(--lr 3)\nOLD=(--n 1)\n# train ${OLD[@]}\npython3 train.py ${A[@]} # ${OLD[@]}\n", LR),
    "a comment behind it": ("A=(--lr 3)\npython3 train.py ${A[@]}\n# python3 train.py ${OLD[@]} --n 1\n", LR),
    "an apostrophe in a comment": ("# it's\npython3 train.py --lr 3 # don't\n# it's\n", LR),
    "an array of others": (
        'HOSTS=(a b)\nfor h in "${HOSTS[@]}"; do ssh $h ray start; done\npython3 train.py --lr 3\n',
        LR,
    ),
    "only the used arrays": (
        "A=(--lr 3)\nB=(--n 1)\necho ${B[@]}\nray job submit -- \\\n  python3 train.py \\\n  ${A[@]}\n",
        LR,
    ),
    "the last flag wins": ("A=(--lr 1)\npython3 train.py ${A[@]} --lr 3\n", LR),
    "the last array wins": ("A=(--lr 1)\nB=(--lr 3)\npython3 train.py --lr 2 ${A[@]} ${B[@]}\n", LR),
    "an array is of its time": ("N=3\nA=(--lr $N)\nN=4\npython3 train.py ${A[@]}\n", LR),
    "an array of arrays": ('A=(--lr 3)\nB=("${A[@]}")\nA=(--lr 4)\npython3 train.py ${B[@]}\n', LR),
    "a text of two lines": (
        'R="--lr 3\n--n 1"\npython3 train.py --m x $R\n',
        {"--m": ("x",), **LR, "--n": ("1",)},
    ),
    "a text with an unknown value": ('R="--n $N --lr 3"\npython3 train.py $R\n', {"--n": ("$N",), **LR}),
    "a text in quotes": ('R="a  b"\npython3 train.py --lr 3 --n "$R"\n', {**LR, "--n": ("a  b",)}),
    "a text that a quote keeps": (
        "python3 train.py --lr 3 --n '$A' \"b\nc\"\n",
        {**LR, "--n": ("$A", "b\nc")},
    ),
    "declare": ("declare -a A=(\n --lr 3\n)\npython3 train.py ${A[@]}\n", LR),
    "readonly": ("readonly A=(--lr 3)\npython3 train.py ${A[@]}\n", LR),
    "export": ("export A=(--lr 3) N=1\npython3 train.py ${A[@]} --n $N\n", {**LR, "--n": ("1",)}),
    "local": ("f() {\n  local A=(--lr $1)\n  python3 train.py ${A[@]}\n}\nf 3\n", LR),
    "more text": ('R="--n 1"\nR+=" --lr 3"\npython3 train.py $R\n', {"--n": ("1",), **LR}),
    "an array behind a text": ('R="--n 1"\nR+=(--lr 3)\npython3 train.py ${R[@]}\n', {"--n": ("1",), **LR}),
    "a star": ("A=(--lr 3)\npython3 train.py ${A[*]}\n", LR),
    "an item that is set": ("A=(--lr 1)\nA[1]=3\npython3 train.py ${A[@]}\n", LR),
    "an item": ("A=(2 3)\npython3 train.py --lr ${A[1]} --n ${#A[@]}\n", {**LR, "--n": ("2",)}),
    "a semicolon": ("N=3; M=8\npython3 train.py --lr $N --n $M\n", {**LR, "--n": ("8",)}),
    "a colon": (": ${N:=3}\npython3 train.py --lr $N\n", LR),
    "an argument's default": ("N=${1:-3}\npython3 train.py --lr $N\n", LR),
    "a default within a default": ("python3 train.py --lr ${A:-${B:-3}}\n", LR),
    "an if on one line": (
        "if [ 1 ]; then N=3; M=1; fi\npython3 train.py --lr $N --n $M\n",
        {**LR, "--n": ("1",)},
    ),
    "a test's default": ("N=3\n[ -z $N ] && N=4\npython3 train.py --lr $N\n", LR),
    "a test's array": ("A=()\n[ 1 ] && A+=(--lr 3)\npython3 train.py ${A[@]}\n", LR),
    "a case": ('S=b\ncase "$S" in\n a) A=(--lr 2);;\n *) A=(--lr 3);;\nesac\npython3 train.py ${A[@]}\n', LR),
    "a loop's variable": (
        "N=1\nfor N in 2 $(date); do :; done\npython3 train.py --lr $N\n",
        {"--lr": ("$N",)},
    ),
    "a number that grows in a loop": (
        "N=1\nfor i in 1 2; do N=$((N * 2)); done\npython3 train.py --lr $N\n",
        {"--lr": ("4",)},
    ),
    "a loop that reads arguments": (
        "N=3\nwhile [ $1 ]; do\n A+=(--n 1); shift\ndone\nA+=(--lr 3)\npython3 train.py --lr $N\n",
        LR,
    ),
    "a function": ('launch(){ python3 train.py "$@"; }; launch --lr 3\n', LR),
    "a function of many lines": (
        'A=(--lr 3)\nfunction go {\n local N=$1; shift\n python3 train.py "$@" --n $N\n}\ngo 1 ${A[@]}\n',
        {**LR, "--n": ("1",)},
    ),
    "a function in another": ('f() { g "$@"; }\ng() {\n python3 train.py "$@"\n}\nf --lr 3\n', LR),
    "a command as a variable": ('CMD="python3 train.py --lr 3"\n$CMD\n', LR),
    "what stops it first": ("pkill -f train.py\nsudo pkill -f train.py\npython3 train.py --lr 3\n", LR),
    "a subshell": ("(cd /x && python3 train.py --lr 3) 2>&1 | tee x.log\n", LR),
    "a text for another program": ("python3 - <<'E'\nit's (\nE\npython3 train.py --lr 3\n", LR),
    "a shell of its own": ("N=3\n(N=4; cd /x)\n(N=$N; python3 train.py --lr $N)\n", LR),
    "a case in brackets": ("N=3\ncase $S in\n a) echo ;;\n (b) N=3 ;;\nesac\npython3 train.py --lr $N\n", LR),
    "a sum that sets": ("N=3\n((N *= 2))\nlet M=2\npython3 train.py --lr $N\n", {"--lr": ("6",)}),
    "a sum that compares": ("N=3\nif ((N == 2)); then M=1; fi\npython3 train.py --lr $N\n", LR),
    "numbers": ("python3 train.py --lr 3 --n {1..3}\n", {**LR, "--n": ("1", "2", "3")}),
    "backquotes": (
        'python3 train.py --lr 3 --n `date` --m "`id`"\n',
        {**LR, "--n": ("$(date)",), "--m": ("$(id)",)},
    ),
    "set": ('set -ex\nset -- --lr 3\npython3 train.py "$@"\n', LR),
    "export in quotes": ('export "N=3"\npython3 train.py --lr $N\n', LR),
    "a sum": ("((i++))\npython3 train.py --lr $((2 ** 3 % 5))\n", LR),
    "a value of its own": ("N=2 python3 train.py --lr 3 --n $N\n", {**LR, "--n": ("$N",)}),
    "a program without a name": (
        "A=(--lr 3)\nray job submit --x -- python3 $P ${A[@]} --n 1\n",
        {**LR, "--n": ("1",)},
    ),
}


@pytest.mark.parametrize("case", READ_AS_BASH_DOES)
def test_it_is_read_as_bash_does(case: str, tmp_path: Path) -> None:
    text, flags = READ_AS_BASH_DOES[case]
    path = tmp_path / "run.sh"
    path.write_text(text)
    assert of_script(path, {}).flags == flags


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


REFUSED = {
    "two commands": (
        "python3 train.py --lr 1\npython3 train_async.py --lr 2\n",
        r"run\.sh, line 2: found a second training command \(the first is in .*line 1\), .*one script for",
    ),
    "a function called twice": (
        'f() {\n python3 train.py "$@"\n}\nf --lr 1\nf --lr 2\n',
        "line 2: found a second training command",
    ),
    "a function that nobody calls": (
        "A=(--lr 1)\nf() {\n python3 train.py ${A[@]}\n}\ntimeout 3 bash -c f\n",
        r"run\.sh, line 3: found the training command in the function f, which is not called",
    ),
    "a file that is not there": (
        "A=(--lr 1)\nsource /nowhere/x.sh\npython3 train.py ${A[@]}\n",
        r"run\.sh, line 2: found `source /nowhere/x\.sh`, expected a file that is there; put it there",
    ),
    "an array of a file that may be there": (
        "[ -f gone.sh ] && source gone.sh\npython3 train.py --lr 1 ${M[@]}\n",
        r"line 2: found M, which the script does not set, expected an array from gone\.sh \(.*line 1\)",
    ),
    "an array that is read": (
        "mapfile -t A < flags.txt\npython3 train.py --lr 1 ${A[@]}\n",
        r"line 2: found A, which .*line 1 fills, expected an array in one piece",
    ),
    "an array of single items": (
        "A=(--lr 1)\nA[1]+=2\npython3 train.py ${A[@]}\n",
        r"line 3: found A, which .*line 2 fills, expected an array in one piece",
    ),
    "an array that grows in a loop": (
        "for i in $(hosts); do A+=(--lr 1); done\npython3 train.py ${A[@]}\n",
        r"line 2: found A, which changes in a loop whose rounds rlcore does not know \(.*line 1\)",
    ),
    "part of an array": (
        "A=(--lr 1 --n 2)\npython3 train.py ${A[@]:0:2}\n",
        r"line 2: found \$\{A\[@\]:0:2\}, expected a whole array",
    ),
    "a shell's text": (
        'docker exec x bash -lc "cd /s && python3 train.py --lr 1"\n',
        "line 1: .*inside a quoted text",
    ),
    "a text that is run": (
        'CMD="python3 train.py --lr 1"\neval $CMD\n',
        r"run\.sh, line 2: found the training command inside a quoted text, .*without the quotes",
    ),
    "a text that nothing here runs": (
        'CMD="python3 train.py --lr 1"\nsrun run "$CMD"\n',
        "inside a quoted text",
    ),
    "lines for another shell": ("ssh x <<E\npython3 train.py --lr 1\nE\n", "line 1: .*inside a quoted text"),
    "a comment between the lines": (
        "python3 train.py --lr 1 \\\n # --m 2 \\\n --n 3\n",
        "line 3: found --n as a command of its own, expected it in the training command; .*take comments out",
    ),
    "an open quote": (
        "A=(--lr 1)\nB='x\npython3 train.py ${A[@]}\n",
        "line 2: found a quote or bracket that stays open",
    ),
    "an open array": (
        "A=(--lr 1\npython3 train.py --n 1\n",
        "line 1: found a quote or bracket that stays open",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_one_sentence(case: str, tmp_path: Path) -> None:
    text, sentence = REFUSED[case]
    path = tmp_path / "run.sh"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence) as refused:
        of_script(path, {})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "line", ["source ~/.bashrc", ". /opt/venv/bin/activate", "if [ -f x ]; then . x; fi"]
)
def test_a_file_without_flags_need_not_be_there(line: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"{line}\npython3 train.py --lr 3\n")
    assert of_script(path, {}).flags == LR


@pytest.mark.parametrize("text", ["", "echo hello\n", "X=1\nY=(1 2)\n"])
def test_a_file_without_flags_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.sh"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"found no flags, expected a run script"):
        of_script(path, {})


def test_a_script_that_reads_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("source run.sh\nX_ARGS=(--lr 1)\n")
    with pytest.raises(ConfigError, match=r"run\.sh: found a script that reads itself"):
        of_script(path, {})


def test_a_file_that_the_script_writes_is_read_with_it(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "GPUS=64\nFILE=$(mktemp /tmp/x_XXXX.yaml)\nOTHER=/tmp/other.yaml\n"
        "cat > \"${FILE}\" <<END\na: ${GPUS}\n--lr: 3\nEND\ncat >$OTHER <<-'X'\nb: ${GPUS}\nX\n"
        'ARGS=(--sglang-config "$FILE" --lr 1 --data $OTHER)\npython3 train.py ${ARGS[@]}\n'
    )
    found = of_script(path, {})
    assert found.flags == {"--sglang-config": ("FILE",), "--lr": ("1",), "--data": ("/tmp/other.yaml",)}
    assert found.files == {"FILE": "a: 64\n--lr: 3", "/tmp/other.yaml": "b: ${GPUS}"}


@pytest.mark.parametrize("text", ["X", "=3", "a b=3"])
def test_a_variable_has_a_name_and_a_value(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--var: found .*, expected NAME=VALUE"):
        variables([text])
