#!/bin/bash
# Run an experiment on several machines of a Slurm cluster:   sbatch examples/cluster/slurm.sh experiment.toml [OUT]
# offbeat[ray] must be installed in .venv under a path that all machines share. Slurm sends SIGTERM a minute before the
# time limit, so that the run leaves a checkpoint; submit the same command again to continue from it.
#SBATCH --job-name=offbeat
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@60
set -euo pipefail
source .venv/bin/activate
export RAY_USAGE_STATS_ENABLED=0 RAY_max_direct_call_object_size=1048576  # the latter: see docs/how-to/scaling.md

nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head=${nodes[0]}
port=6379
cpus=$SLURM_CPUS_PER_TASK
gpus=${SLURM_GPUS_ON_NODE:-0}

# One core of the first machine is for the driver; all other cores train. (A step gets one core unless told otherwise.)
srun --nodes=1 --ntasks=1 --cpus-per-task="$cpus" --nodelist="$head" \
    ray start --head --port=$port --num-cpus=$((cpus - 1)) --num-gpus="$gpus" --include-dashboard=false --block &
there() { ray status --address="$head:$port" 2>/dev/null | grep -c ' node_'; }
until (($(there) >= 1)); do sleep 2; done
for node in "${nodes[@]:1}"; do
    srun --nodes=1 --ntasks=1 --cpus-per-task="$cpus" --nodelist="$node" \
        ray start --address="$head:$port" --num-cpus="$cpus" --num-gpus="$gpus" --block &
done
until (($(there) >= ${#nodes[@]})); do sleep 2; done  # the run uses the machines that are connected when it starts

# This script runs on the first machine, where the head is.
out=${2:-runs/$(basename "$1" .toml)}
mkdir -p "$out"  # --resume needs the directory; it starts the run if that is empty
offbeat run "$1" --address "$head:$port" --out "$out" --resume &
driver=$!
trap 'kill -TERM $driver' TERM
status=0
wait $driver || status=$?
trap - TERM
wait $driver 2>/dev/null || status=$?
kill $(jobs -p) 2>/dev/null || true  # ends only this job's cluster
exit $status
