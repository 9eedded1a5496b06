"""Scripts are read as bash runs them, or what is not known is named, or they are refused."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rlcore import ConfigError
from rlcore_import.arguments import of_script

TRAIN = "\npython3 train.py --lr "
AS_BASH = {
    "f() { local LR=3; }\nLR=1\nf" + TRAIN + "$LR": "1",
    "f() { local A; A=3; }\nA=1\nf" + TRAIN + "$A": "1",
    "f() { local A=5; g; }\ng() { A=6; }\nA=1\nf" + TRAIN + "$A": "1",
    "f() { return; }\nf && A=1\nfalse\nif f; then B=1; else B=2; fi" + TRAIN + "$A $B": "1 2",
    "f() { A=2; return; A=3; }\nf" + TRAIN + "$A": "2",
    "f() { A+=($1); }\nf 1\nf 2" + TRAIN + "${A[@]}": "1 2",
    "f() { shift; B=$1$#; }\nf a b c" + TRAIN + "$B": "b2",
    "f() { B=$A; }\nA=1 f" + TRAIN + "$B ${A:-none}": "1 none",
    "f() { [ $1 = a ] && return 0; return 1; }\nf a && A=1\nf b || B=2" + TRAIN + "$A $B": "1 2",
    "LR=1" + TRAIN + "$LR\nexit 0" + TRAIN + "2": "1",
    "exec python3 train.py --lr 1" + TRAIN + "2": "1",
    "MODE=a\ncase $MODE in a) A=1;; b) A=2;; *) A=3;; esac" + TRAIN + "$A": "1",
    "M=a\ncase $M in a) A=1;& b) A=2;; *) A=3;; esac" + TRAIN + "$A": "2",
    "C=1\n[ $C = 1 ] && A=2 || A=3" + TRAIN + "$A": "2",
    "M=b\nif [ $M = a ]; then A=1; elif [ $M = b ]; then A=2; else A=3; fi" + TRAIN + "$A": "2",
    "A=x.y\nif [[ $A == *.y && ( -z '' || 1 -gt 2 ) ]]; then B=1; else B=2; fi" + TRAIN + "$B": "1",
    "N=5\nif ((N > 4)); then A=1; else A=2; fi" + TRAIN + "$A": "1",
    "for i in 1 2 3; do [ $i = 3 ] && break; A+=($i); done" + TRAIN + "${A[@]} $i": "1 2 3",
    "for i in 1 2 3; do [ $i = 2 ] && continue; A+=($i); done" + TRAIN + "${A[@]}": "1 3",
    "for ((i=0;i<3;i++)); do A+=($i); done" + TRAIN + "${A[@]} $i": "0 1 2 3",
    "i=0\nwhile [ $i -lt 3 ]; do i=$((i+1)); done" + TRAIN + "$i": "3",
    "set -- a b\nwhile [ $# -gt 0 ]; do A+=(x$1); shift; done" + TRAIN + "${A[@]} end$@": "xa xb end",
    TRAIN + "{3..1} a{1,2} {05..07} {1..9..4} x{}": "3 2 1 a1 a2 05 06 07 1 5 9 x{}",
    TRAIN + "$((7/-2)) $((-7%3)) $((1<2)) $((2**62))": "-3 -1 1 4611686018427387904",
    "A=1+2" + TRAIN + "$((A*2)) $(($A*2))": "6 5",
    "N=3\n((N*=2))\nlet M=N+1" + TRAIN + "$N $M": "6 7",
    "N=1\n! ((N++)) && A=2" + TRAIN + "$N ${A:-3}": "2 3",
    "A=3\necho 5 | A=4\n(A=5)\nA=6 & wait" + TRAIN + "$A": "3",
    "eval 'A=3'" + TRAIN + "$A": "3",
    "A=1\nA+=2\nexport B=$A" + TRAIN + "$A $B": "12 12",
    "A=1\nunset A" + TRAIN + "${A:-4}": "4",
    "A=(x y)\nA=z" + TRAIN + "${A[@]}": "z y",
    "A=(1 2)" + TRAIN + "0 ${B[@]:-3} ${A[@]:+4}": "0 3 4",
    "A=(${N:-2})\nN=3" + TRAIN + "${A[@]}": "2",
    "A=$D" + TRAIN + "${A:-3}": "3",
    "trap 'A=3' EXIT\nA=1\ncat <<E\nA=2\nE" + TRAIN + "$A": "1",
    "source x.sh 5" + TRAIN + "$A": "5",
    TRAIN + "$'a\\tb' | tee log": "a\tb",
}
"""Script → the values of --lr that bash passes."""


def _in_bash(folder: Path) -> list[str]:
    """The words that bash hands to the program, which notes them."""
    program = folder / "bin" / "python3"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" > {folder}/given\n')
    program.chmod(0o755)
    path = os.pathsep.join((str(program.parent), "/usr/bin", "/bin"))
    subprocess.run(
        ["bash", "run.sh"], cwd=folder, env={"PATH": path}, stdin=subprocess.DEVNULL, check=False, timeout=60
    )
    return (folder / "given").read_text().split("\0")[:-1]


@pytest.mark.parametrize("script", AS_BASH)
def test_a_script_is_read_as_bash_runs_it(script: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(script + "\n")
    (tmp_path / "x.sh").write_text("A=$1\nreturn\nA=7\n")
    expected = AS_BASH[script].split(" ")
    assert of_script(path, {}).flags == {"--lr": tuple(expected)}
    if shutil.which("bash"):
        assert _in_bash(tmp_path) == ["train.py", "--lr", *expected]


NAMED = {
    TRAIN + "$(( ((9**64)**64)**64 ))": "$(( ((9**64)**64)**64 ))",
    TRAIN + "$((-2**2))": "$((-2**2))",
    "A=5\necho $((A++))" + TRAIN + "$A": "$A",
    "grep x y && A=2 || A=3" + TRAIN + "$A": "$A",
    'if [ -n "$Q" ]; then A=1; else A=2; fi' + TRAIN + "$A": "$A",
    "case $Q in a) A=1;; *) A=2;; esac" + TRAIN + "$A": "$A",
    "A=1\nf() { A=2; grep x y || return; A=3; }\nf" + TRAIN + "$A": "$A",
    "A=1\nwhile true; do A=2; grep x y && break; done" + TRAIN + "$A": "$A",
    "A=1\nwhile read x; do A=2; done" + TRAIN + "${A:-3}": "${A:-3}",
    "read A" + TRAIN + "${A:-3}": "${A:-3}",
    "read B\nA=${B-}" + TRAIN + "${A:-3}": "${A:-3}",
    "printf -v A x" + TRAIN + "$A": "$A",
    "i=0\nwhile [ $i -lt 5000 ]; do i=$((i+1)); done" + TRAIN + "$i": "$i",
    "A=aXb" + TRAIN + "${A//X/y}": "${A//X/y}",
    "A=3\nB=A" + TRAIN + "${!B}": "${!B}",
    "IFS=,\nA=1,2" + TRAIN + "$A": "$A",
    "A=($Q 1)" + TRAIN + "${#A[@]}": "${#A[@]}",
}
"""Script → what the table of flags says is set as the script runs."""


@pytest.mark.parametrize("script", NAMED)
def test_what_is_not_known_is_named(script: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(script + "\n")
    assert of_script(path, {}).flags == {"--lr": (NAMED[script],)}


REFUSED = {
    "exit 0" + TRAIN + "1": "line 2: found a training command that the script does not reach, .*, line 1,",
    "if [ 1 = 2 ]; then" + TRAIN + "1\nfi": "line 2: found a training command that the script does not reach",
    'A=(1)\nunset "A[0]"' + TRAIN + "${A[@]}": "line 3: found A, which .*line 2 fills",
    "A=([2]=x [0]=y)" + TRAIN + "${A[@]}": "line 2: found A, which .*line 1 fills",
    '[ -n "$Q" ] && A=(1)' + TRAIN + "${A[@]}": r"found A, which changes .*\$Q.* with --var NAME=VALUE",
    "for i in 1 2; do" + TRAIN + "$i; done": "found a second training command",
    "if grep x y; then f() { A=2; }; fi\nf" + TRAIN + "1": "line 2: found the function f, which changes",
    "f() { f; }\nf" + TRAIN + "1": "line 1: found f within itself",
    'eval "A=$(date)"' + TRAIN + "$A": "line 1: found an eval of A=",
    "declare -n B=A" + TRAIN + "$A": "line 1: found `declare -n`",
    TRAIN + "{1..100000000}": r"found \{1\.\.100000000\}, expected at most 10000 words",
    "if true; then" + TRAIN + "1": "found the end of the file, expected elif or else or fi",
}


@pytest.mark.parametrize("script", REFUSED)
def test_what_cannot_be_read_is_refused(script: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(script + "\n")
    with pytest.raises(ConfigError, match=REFUSED[script]) as refused:
        of_script(path, {})
    assert "\n" not in str(refused.value)
