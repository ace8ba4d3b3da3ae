#!/bin/bash
# Trains on several nodes of a Slurm cluster. Slurm starts one ddprun on each node, each starts the workers of its node,
# and together they are one job with ranks 0 to N-1. Run it in the folder that has build/, on a shared file system:
#
#   sbatch scripts/slurm/submit_ddp.sh                                             # the sample: the MNIST CNN
#   sbatch --nodes=4 --time=08:00:00 scripts/slurm/submit_ddp.sh train.py --lr 0.1     # a program and its arguments
#   WORKERS_PER_NODE=8 sbatch --partition=gpu --gres=gpu:8 scripts/slurm/submit_ddp.sh train.py
#
# sbatch's flags follow; those on its command line win.
#SBATCH --job-name=ddp
#SBATCH --nodes=2
#
# One task per node, which is ddprun. The CPUs are for all workers of the node.
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#
# Relative to the folder of submission; %x is the job's name, %j its number.
#SBATCH --output=%x-%j.out
#SBATCH --error=%x-%j.err
#
# Slurm ends the job after this time. Shorter jobs start sooner.
#SBATCH --time=00:20:00
#
# For GPUs remove one # from each, and use your cluster's names (sinfo --format="%P %G").
##SBATCH --partition=gpu
##SBATCH --gres=gpu:2

set -euo pipefail

# Set up what the program needs here: module load ..., source venv/bin/activate.
# srun passes the environment on to all nodes.
export PATH=$PWD/build/bin:$PATH

[ $# -gt 0 ] || set -- worker mnist --epochs=5 --batch-size=128 --out="runs/mnist-$SLURM_JOB_ID"

# One worker for each GPU that Slurm gives us on a node, else two; they share the node's CPUs.
workers=${WORKERS_PER_NODE:-${SLURM_GPUS_ON_NODE:-2}}
cpus=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=$((cpus > workers ? cpus / workers : 1))

# Since Slurm 22.05 srun ignores the --cpus-per-task above; without this all workers of a node may share one CPU.
export SRUN_CPUS_PER_TASK=$cpus

# Only nodes that know the token can take part. A new one for each job, and never an argument: ps shows those.
DDPRUN_TOKEN=$(od -An -N32 -v -tx1 /dev/urandom | tr -d ' \n')
export DDPRUN_TOKEN

echo "job $SLURM_JOB_ID on $SLURM_JOB_NUM_NODES nodes: $SLURM_JOB_NODELIST, from $(hostname), $(date -u +%FT%TZ)"
echo "each: $workers workers with OMP_NUM_THREADS=$OMP_NUM_THREADS, $cpus CPUs, GPUs: ${SLURM_GPUS_ON_NODE:-none}"
echo "$(ddprun --version), program: $*"

# No need to set MASTER_ADDR, MASTER_PORT, RANK or WORLD_SIZE: ddprun learns the nodes from Slurm and sets them for each
# worker. The exit code, also of the job (scontrol show job), is that of the worker that failed first.
srun ddprun --nproc-per-node="$workers" "$@"
