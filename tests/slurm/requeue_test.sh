#!/usr/bin/env bash
# scripts/slurm/submit_requeue.sh, submitted to a real Slurm: SIGUSR1, save, back into the queue, go on.
# usage: with_slurm.sh requeue_test.sh DDPRUN
script=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../scripts/slurm/submit_requeue.sh")
PATH=$(dirname "$(realpath "$1")"):$PATH
# shellcheck source=tests/slurm/jobs.sh
source "$(dirname "${BASH_SOURCE[0]}")/jobs.sh"

# Counts steps. Step 1000 is taken only in the second run, so that the first does not get there before the signal.
cat >program.sh <<'PROGRAM'
step=0
[ ! -e "saved.$RANK" ] || read -r step <"saved.$RANK"
echo "run ${SLURM_RESTART_COUNT:-0}, rank $RANK of $WORLD_SIZE: from step $step"
save() { echo "$step" >"saved.$RANK.new" && mv "saved.$RANK.new" "saved.$RANK"; }
trap 'save; [ "$1" = goes_on ] || exit 0' USR1
until [ "$step" = 1000 ]; do
  [ "$step" -lt 900 ] && step=$((step + 1))
  [ "$step" -lt 10 ] || touch "ready.$RANK"
  [ -z "$SLURM_RESTART_COUNT" ] || step=1000
  sleep 0.05
done
echo "rank $RANK is done"
PROGRAM

goes_on_from_its_checkpoint() { # exits|goes_on
  local rank step
  submit --output="$1.out" --error="$1.err" "$script" sh ./program.sh "$1"
  until_true exist ready.0 ready.1 ready.2 ready.3
  scancel --batch --signal=USR1 "$job" # as Slurm does for --signal=B:USR1@60
  is_queued_again() { has Restarts 1 && has JobState PENDING; }
  until_true is_queued_again
  scontrol update jobid="$job" starttime=now+2 # Slurm would wait for two minutes; in this second it takes no job again
  expect_end COMPLETED 0:0
  has Restarts 1 || fail "expected one restart"
  expect_line "$1.out" "job $job, run 2 on 2 nodes: .*"
  for rank in 0 1 2 3; do
    read -r step <"saved.$rank"
    ((step >= 10)) || fail "rank $rank saved step $step"
    expect_line "$1.out" "run 0, rank $rank of 4: from step 0"
    expect_line "$1.out" "run 1, rank $rank of 4: from step $step"
    expect_line "$1.out" "rank $rank is done"
  done
  rm saved.* ready.*
  passed "a program that $1 at SIGUSR1 is run again"
}

a_failure_is_none() {
  submit --nodes=1 --output=fails.out --error=fails.err "$script" sh -c 'exit 7'
  expect_end FAILED 7:0
  has Restarts 0 || fail "expected no restart"
  passed "a failure does not go back into the queue"
}

goes_on_from_its_checkpoint exits
export SECONDS_TO_SAVE=5
goes_on_from_its_checkpoint goes_on
a_failure_is_none
