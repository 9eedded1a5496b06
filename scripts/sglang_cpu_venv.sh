#!/usr/bin/env bash
# Makes a virtual environment with an unmodified SGLang for machines without a GPU.
#   scripts/sglang_cpu_venv.sh VENV [pip options, e.g. --index-url URL]
# The options are for torch only, whose CPU build elsewhere than on a plain PyPI mirror has its own index.
# A finished environment of the same versions is left as it is. PYTHON names the interpreter to start from.
set -euo pipefail

venv=${1:?usage: scripts/sglang_cpu_venv.sh VENV [pip options for torch]}
shift
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
requirements=$here/sglang_cpu_requirements.txt
torch="torch==2.13.0"
without_dependencies=("sglang==0.5.23" "xgrammar==0.2.7")
mark=$venv/.rlcore-sglang
wanted=$(printf '%s\n' "$torch" "${without_dependencies[@]}" "$(cat "$requirements")")

if [ -f "$mark" ] && [ "$(cat "$mark")" = "$wanted" ]; then
    exit 0
fi
rm -rf "$venv"
"${PYTHON:-python3}" -m venv "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
"${pip[@]}" "$@" "$torch" # first, so that nothing below brings another build of it
"${pip[@]}" -r "$requirements"
"${pip[@]}" --no-deps "${without_dependencies[@]}"
printf '%s\n' "$wanted" > "$mark"
