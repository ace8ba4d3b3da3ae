#!/bin/bash
# Trains on the GPUs of one node of a Slurm cluster. Run it in the folder that has build/:
#
#   sbatch scripts/slurm/submit_one_node.sh                                    # the sample: the MNIST CNN
#   sbatch --partition=gpu scripts/slurm/submit_one_node.sh train.py --lr 0.1  # a program and its arguments
#
# sbatch's flags follow; those on its command line win. The comments also say what scripts of this kind often get wrong.
#SBATCH --job-name=ddp
#SBATCH --nodes=1
#
# One task, which is ddprun; it starts the workers. A task for each GPU would ask for processes that nobody starts: a launcher
# in the batch script runs once, whatever --ntasks says.
#SBATCH --ntasks=1
#
# Of the task, so of all workers together. With 1 for each GPU, loading data and computing share one CPU.
#SBATCH --cpus-per-task=4
#
#SBATCH --gres=gpu:2
#
# %x is the job's name, %j its number.
#SBATCH --output=%x-%j.out
#SBATCH --error=%x-%j.err
#
# Slurm ends the job after this time. Shorter jobs start sooner.
#SBATCH --time=00:20:00
#
# Remove one # and name your cluster's partition with GPUs (sinfo --format="%P %G").
##SBATCH --partition=gpu

# Without it a failed command, such as for a missing environment, goes unnoticed, and the training fails later
# for another reason.
set -euo pipefail

# Set up what the program needs here: module load ..., then source venv/bin/activate. `conda activate` needs
# `source "$(conda info --base)/etc/profile.d/conda.sh"` first: a batch script reads no .bashrc.
export PATH=$PWD/build/bin:$PATH

[ $# -gt 0 ] || set -- worker mnist --epochs=5 --batch-size=128 --out="runs/mnist-$SLURM_JOB_ID"

workers=${SLURM_GPUS_ON_NODE:-2}

# The workers share the CPUs. OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK would give each worker as many threads as all have CPUs.
cpus=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=$((cpus > workers ? cpus / workers : 1))

echo "job $SLURM_JOB_ID on $(hostname), $(date -u +%FT%TZ), GPUs: ${CUDA_VISIBLE_DEVICES:-none}"
echo "$(ddprun --version), $workers workers with OMP_NUM_THREADS=$OMP_NUM_THREADS, program: $*"

# ddprun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each worker; in this script SLURM_PROCID is 0, so a RANK
# made from it would be 0 for all. It finds a free port; a fixed one fails for the second job on a node. --show-ranks prints them all.
# The exit code, also of the job (scontrol show job), is that of the worker that failed first.
exec ddprun --standalone --nproc-per-node="$workers" --show-ranks "$@"
