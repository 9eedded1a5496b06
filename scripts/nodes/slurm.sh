#!/bin/bash
#SBATCH --job-name=rlcore
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
# A run on the nodes of a SLURM job. All that follows the script goes to `rlcore train`:
#
#   sbatch --nodes 2 --gpus-per-node 8 --time 12:00:00 scripts/nodes/slurm.sh --algo grpo --model … --ranks 16
#
# All nodes need the folder of the submission and the environment that is active there. The run is runs/slurm-JOB;
# `RUN=FOLDER sbatch …` names another one, and goes on with one that exists. docs/nodes.md says more.
set -euo pipefail

RUN=${RUN:-runs/slurm-${SLURM_JOB_ID:?expected a job of SLURM: start this script by sbatch}}

# The address by which SLURM itself reaches a node.
address() {
    local name
    name=$(scontrol --oneliner show node "$1" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
    getent ahostsv4 "$name" | awk 'NR == 1 { print $1 }'
}

# One node of Ray: the head on the first host, which joins nobody.
node() {
    local options=(--address "$HEAD")
    if [ "$SLURM_NODEID" = 0 ]; then
        options=(--head --port "${HEAD#*:}" --temp-dir "$FILES" --include-dashboard=false)
    fi
    exec ray start --block --disable-usage-stats --node-ip-address "$(address "$SLURMD_NODENAME")" \
        --num-cpus "$SLURM_CPUS_ON_NODE" --num-gpus "${SLURM_GPUS_ON_NODE:-0}" \
        --min-worker-port 0 --max-worker-port 0 --dashboard-agent-listen-port 0 "${options[@]}"
}

newest() { { find "$RUN/checkpoints" -mindepth 1 -maxdepth 1 2> /dev/null || :; } | sort -V | tail -n 1; }

HEAD=$(address "$SLURMD_NODENAME"):$((20000 + SLURM_JOB_ID % 10000))
FILES=/tmp/rlcore-ray-$SLURM_JOB_ID
RAY_AUTH_TOKEN=$(od -A n -N 32 -t x1 /dev/urandom | tr -d ' \n') # without it, others on the network could run code
export HEAD FILES RAY_AUTH_TOKEN RAY_AUTH_MODE=token RAY_worker_niceness=0
export -f address node
srun --cpu-bind=none --mem=0 --output "rlcore-$SLURM_JOB_ID-ray-%t.log" --open-mode=append bash -c node &
ray=$!

if [ -e "$RUN/run.toml" ]; then
    set -- --resume "$RUN" "$@"
else
    set -- --run-dir "$RUN" "$@"
fi
before=$(newest)
rlcore train "$@" --cluster.address "$HEAD" --cluster.hosts "$SLURM_JOB_NUM_NODES" &
train=$!

# USR1: the time is nearly up. TERM: somebody ends the run (`scancel --batch --signal=TERM JOB`). Both save first.
goes_on=
trap 'goes_on=yes; kill -TERM $train 2> /dev/null || :' USR1
trap 'kill -TERM $train 2> /dev/null || :' TERM
while kill -0 $train 2> /dev/null; do
    wait $train || :
done
wait $train && code=0 || code=$?
kill $ray 2> /dev/null || : # all of Ray at once: nobody needs it any more
wait $ray 2> /dev/null || :
timeout 30 srun --overlap rm -rf "$FILES" || :
echo "slurm.sh: rlcore train ended with exit code $code"

# The time is up, or a node or a worker was lost: the job goes on later, if this start has saved anything. So it ends some day.
if [ "$(newest)" != "$before" ] && { [ -n "$goes_on" ] || [ $code = 1 ]; }; then
    echo "slurm.sh: requeued, to go on from $(newest)"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
