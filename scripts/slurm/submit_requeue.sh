#!/bin/bash
# For a training that takes longer than a job may: shortly before its time is up, or before a preemption, the
# program is told to save, and the job goes back into the queue. When it runs again, the program continues from there.
#
#   sbatch --nodes=4 scripts/slurm/submit_requeue.sh train.py --checkpoints /shared/run7
#
# The program must
#   - save at SIGUSR1 (which may come twice) and then exit with 0, all ranks together; a program that continues after saving gets
#     SIGTERM,
#   - start from what it saved, if anything, and exit with 0 at once if nothing is left to do.
#
# Before the time is up, B: sends the signal to this script. Slurm checks once a minute, so it may come that much earlier.
# Before a preemption it does so if slurm.conf has PreemptParameters=send_user_signal; otherwise the program gets SIGTERM
# (if the partition has a GraceTime), and Slurm itself requeues the job.
#SBATCH --signal=B:USR1@60
#
# The job may run again, with the same number; it then appends to its logs.
#SBATCH --requeue
#SBATCH --open-mode=append
#
# submit_ddp.sh explains the rest.
#SBATCH --job-name=ddp-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --output=%x-%j.out
#SBATCH --error=%x-%j.err
#SBATCH --time=00:20:00
##SBATCH --partition=gpu
##SBATCH --gres=gpu:2

set -euo pipefail
[ $# -gt 0 ] || { echo "usage: sbatch [flags] $0 PROGRAM [arguments]" >&2; exit 2; }

export PATH=$PWD/build/bin:$PATH
workers=${WORKERS_PER_NODE:-${SLURM_GPUS_ON_NODE:-2}}
cpus=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=$((cpus > workers ? cpus / workers : 1))
export SRUN_CPUS_PER_TASK=$cpus
DDPRUN_TOKEN=$(od -An -N32 -v -tx1 /dev/urandom | tr -d ' \n')
export DDPRUN_TOKEN

seconds_to_save=${SECONDS_TO_SAVE:-45} # of the 60 above; a program that still runs then is ended

echo "job $SLURM_JOB_ID, run $((${SLURM_RESTART_COUNT:-0} + 1)) on $SLURM_JOB_NUM_NODES nodes: $SLURM_JOB_NODELIST," \
  "from $(hostname), $(date -u +%FT%TZ)"
echo "each: $workers workers with OMP_NUM_THREADS=$OMP_NUM_THREADS, $cpus CPUs, GPUs: ${SLURM_GPUS_ON_NODE:-none}"
echo "$(ddprun --version), program: $*"

# In the background, because a shell handles no signal while a foreground program runs.
# After SIGTERM Slurm gives a program KillWait (30 s) to end, so ddprun gives its workers less.
warned=no
trap 'warned=yes' USR1
srun ddprun --nproc-per-node="$workers" --shutdown-timeout=25 "$@" &
step=$!
status=0
wait "$step" || status=$? # a signal ends the wait too

if [ "$warned" = yes ]; then
  echo "SIGUSR1 from Slurm: the program is to save"
  scancel --signal=USR1 "$SLURM_JOB_ID" # to the ddprun of each node, which passes it on to its workers
  for _ in $(seq "$seconds_to_save"); do
    kill -0 "$step" 2>/dev/null || break
    sleep 1
  done
  status=0
  kill -0 "$step" 2>/dev/null || wait "$step" || status=$?
  if [ "$status" = 0 ]; then
    echo "back into the queue"
    scontrol requeue "$SLURM_JOB_ID" # ends everything that still runs, including this script
  fi
fi
exit "$status"
