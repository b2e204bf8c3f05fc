#!/bin/bash
# An experiment on several machines of a Slurm cluster:   sbatch examples/cluster/slurm.sh experiment.toml
# offbeat[ray] must be installed in .venv under a path that all machines share. The time limit sends SIGTERM a minute
# before the end, so that the run leaves a checkpoint; the same command again goes on from it.
#SBATCH --job-name=offbeat
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@60
set -euo pipefail
source .venv/bin/activate
export RAY_USAGE_STATS_ENABLED=0 RAY_max_direct_call_object_size=1048576  # the latter: see docs/scaling.md

nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head=${nodes[0]}
port=6379
cpus=$SLURM_CPUS_PER_TASK
gpus=${SLURM_GPUS_ON_NODE:-0}

# The driver has a core of the first machine; the other cores, and all of the other machines, train. (A step does not
# take the number of cores from the job: unless told, it has one.)
srun --nodes=1 --ntasks=1 --cpus-per-task="$cpus" --nodelist="$head" \
    ray start --head --port=$port --num-cpus=$((cpus - 1)) --num-gpus="$gpus" --include-dashboard=false --block &
there() { ray status --address="$head:$port" 2>/dev/null | grep -c ' node_'; }
until (($(there) >= 1)); do sleep 2; done
for node in "${nodes[@]:1}"; do
    srun --nodes=1 --ntasks=1 --cpus-per-task="$cpus" --nodelist="$node" \
        ray start --address="$head:$port" --num-cpus="$cpus" --num-gpus="$gpus" --block &
done
until (($(there) >= ${#nodes[@]})); do sleep 2; done  # the run has workers on the machines that are there when it begins

# This script runs on the first machine, beside the head.
offbeat run "$1" --address "$head:$port" --resume &
driver=$!
trap 'kill -TERM $driver' TERM
status=0
wait $driver || status=$?
trap - TERM
wait $driver 2>/dev/null || status=$?
kill $(jobs -p) 2>/dev/null || true  # the cluster of this job, and no other that may run on these machines
exit $status
