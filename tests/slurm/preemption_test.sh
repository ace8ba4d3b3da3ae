#!/usr/bin/env bash
# Slurm's --signal=USR1@SECONDS for one node: SIGUSR1 to the job step reaches every worker, which saves and exits with 0, and the
# job run again goes on from there. See docs/slurm.md. usage: with_slurm.sh preemption_test.sh DDPRUN
ddprun=$(realpath "$1")
# shellcheck source=tests/slurm/jobs.sh
source "$(dirname "${BASH_SOURCE[0]}")/jobs.sh"

cat >train.sh <<'PROGRAM'
trap 'echo "rank $RANK saved"; touch "saved.$RANK"; exit 0' USR1
if [ -e "saved.$RANK" ]; then echo "rank $RANK goes on"; touch "done.$RANK"; exit 0; fi
touch "ready.$RANK"
while :; do sleep 0.1; done
PROGRAM
cat >job.sh <<SCRIPT
#!/bin/sh
#SBATCH --nodes=1 --ntasks=1 --output=job.out --open-mode=append
srun "$ddprun" --nproc-per-node=2 --shutdown-timeout=25 sh ./train.sh
SCRIPT

submit job.sh
until_true exist ready.0 ready.1
scancel --signal=USR1 "$job" # as Slurm's --signal=USR1@SECONDS does: to the job step, not to the batch script
expect_end COMPLETED 0:0
exist saved.0 saved.1 || fail "a worker did not get SIGUSR1"
[ ! -e done.0 ] || fail "a worker was done at once"

submit job.sh
expect_end COMPLETED 0:0
exist done.0 done.1 || fail "a worker did not go on"
passed "SIGUSR1 to the job step, one node"
