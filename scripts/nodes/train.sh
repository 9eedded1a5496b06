#!/bin/sh
# sh train.sh RUN FLAG…    `rlcore train` into the folder RUN; a run that is there goes on. For what starts a command
# again after a loss, with the same words.
set -eu
run=$1
shift
if [ -e "$run/run.toml" ]; then
    exec rlcore train --resume "$run" "$@"
fi
exec rlcore train --run-dir "$run" "$@"
