#!/bin/bash
# A training over several nodes of a Slurm cluster. Slurm starts one ddprun on each node, each starts the workers of its node,
# and together they are one job with ranks 0 to N-1. From the folder that has build/, on a file system that all nodes see:
#
#   sbatch scripts/slurm/submit_ddp.sh                                             # the sample: the MNIST CNN
#   sbatch --nodes=4 --time=08:00:00 scripts/slurm/submit_ddp.sh train.py --lr 0.1     # a program and its arguments
#   WORKERS_PER_NODE=8 sbatch --partition=gpu --gres=gpu:8 scripts/slurm/submit_ddp.sh train.py
#
# What follows are sbatch's flags; those on its command line win.
#SBATCH --job-name=ddp
#SBATCH --nodes=2
#
# One task a node: that is ddprun. The CPUs are those of a node, for all its workers.
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#
# In the folder of submission; %x is the job's name, %j its number.
#SBATCH --output=%x-%j.out
#SBATCH --error=%x-%j.err
#
# After this time Slurm ends the job. A shorter one finds its place in the queue sooner.
#SBATCH --time=00:20:00
#
# For GPUs take away one # of each, and write what your cluster calls them (sinfo --format="%P %G").
##SBATCH --partition=gpu
##SBATCH --gres=gpu:2

set -euo pipefail

# Whatever the program needs comes here: module load ..., source venv/bin/activate.
# srun passes the environment on, so it holds on all nodes.
export PATH=$PWD/build/bin:$PATH

[ $# -gt 0 ] || set -- worker mnist --epochs=5 --batch-size=128 --out="runs/mnist-$SLURM_JOB_ID"

# A worker for each GPU that Slurm gives us on a node, or else two; they share the node's CPUs.
workers=${WORKERS_PER_NODE:-${SLURM_GPUS_ON_NODE:-2}}
cpus=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=$((cpus > workers ? cpus / workers : 1))

# Since Slurm 22.05 srun does not go by the --cpus-per-task above; without this all workers of a node may share one CPU.
export SRUN_CPUS_PER_TASK=$cpus

# Only who knows the token can take part in the job. A new one for each, and never an argument: those can be seen with ps.
DDPRUN_TOKEN=$(od -An -N32 -v -tx1 /dev/urandom | tr -d ' \n')
export DDPRUN_TOKEN

echo "job $SLURM_JOB_ID on $SLURM_JOB_NUM_NODES nodes: $SLURM_JOB_NODELIST, from $(hostname), $(date -u +%FT%TZ)"
echo "each: $workers workers with OMP_NUM_THREADS=$OMP_NUM_THREADS, $cpus CPUs, GPUs: ${SLURM_GPUS_ON_NODE:-none}"
echo "$(ddprun --version), program: $*"

# Nothing sets MASTER_ADDR, MASTER_PORT, RANK or WORLD_SIZE: ddprun finds out from Slurm which nodes there are, and gives each
# worker its own. The exit code is that of the worker that failed first, and so is the job's (scontrol show job).
srun ddprun --nproc-per-node="$workers" "$@"
