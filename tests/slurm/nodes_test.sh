#!/usr/bin/env bash
# One job over two nodes of a real Slurm. usage: with_slurm.sh nodes_test.sh DDPRUN
ddprun=$(realpath "$1")
readme=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../README.md")
# shellcheck source=tests/slurm/jobs.sh
source "$(dirname "${BASH_SOURCE[0]}")/jobs.sh"
export ddprun

# The first that fails ends both nodes; its code is the job's.
exit_code() {
  cat >program.sh <<'PROGRAM'
touch "ready.$RANK"
[ "$RANK" != 3 ] || { until [ -e ready.0 ] && [ -e ready.1 ] && [ -e ready.2 ]; do sleep 0.1; done; exit 7; }
sleep 1000
PROGRAM
  # shellcheck disable=SC2016 # of the shell on the node
  submit --nodes=2 --output=code.out --wrap='srun sh -c "$ddprun --nproc-per-node=2 sh ./program.sh; code=\$?;
    echo \$code > code.\$SLURM_NODEID; exit \$code"'
  expect_end FAILED 7:0
  [ "$(cat code.0 code.1)" = $'7\n7' ] || fail "expected 7 of the ddprun of each node"
  passed "a rank's exit code ends both nodes and the job"
}

readme_line() {
  local rank
  echo 'import os; print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])' >train.py
  PATH=$(dirname "$ddprun"):$PATH sh -c "$(grep -m 1 '^srun ' "$readme")" >readme.out 2>&1 || fail "the README's srun failed"
  for rank in 0 1 2 3; do expect_line readme.out "rank $rank of 4"; done
  passed "the README's line for srun"
}

several_tasks_a_node() {
  # shellcheck disable=SC2016
  submit --nodes=2 --ntasks-per-node=2 --output=tasks.out --wrap='srun $ddprun sh -c "echo rank \$RANK of \$WORLD_SIZE, \
local \$LOCAL_RANK of \$LOCAL_WORLD_SIZE, group \$GROUP_RANK of \$GROUP_WORLD_SIZE, node \$SLURM_NODEID task \$SLURM_PROCID"'
  expect_end COMPLETED 0:0
  local rank
  for rank in 0 1 2 3; do
    expect_line tasks.out "rank $rank of 4, local [01] of 2, group ([01]) of 2, node \\1 task $rank"
  done
  [ "$(grep -c "local 0" tasks.out)" = 2 ] || fail "expected local ranks 0 and 1 on each node"
  passed "several tasks a node are the workers"
}

excluded() {
  echo 'echo "rank $RANK of $WORLD_SIZE on node $SLURM_NODEID"' >program.sh
  # shellcheck disable=SC2016
  submit --nodes=2 --output=excluded.out --wrap='srun $ddprun --exclude="$(scontrol show hostnames | head -n 1)" --nproc-per-node=2 sh ./program.sh'
  expect_end COMPLETED 0:0
  for rank in 0 1; do expect_line excluded.out "rank $rank of 2 on node 1"; done
  [ "$(grep -c "^rank" excluded.out)" = 2 ] || fail "expected no rank on the excluded node"
  passed "a node is left out"
}

# Each task has a ddprun of its own, and only rank 0 prints.
silent_tasks() {
  cat >program.sh <<'PROGRAM'
i=0
while [ $i -lt 20 ]; do
  [ "$RANK" != 0 ] || echo "step $i"
  i=$((i + 1))
  sleep 0.25
done
PROGRAM
  # shellcheck disable=SC2016
  submit --nodes=2 --ntasks-per-node=2 --output=silent.out --wrap='srun $ddprun --hang-timeout=2 --node-timeout=2 sh ./program.sh'
  expect_end COMPLETED 0:0
  passed "rank 0's output keeps silent tasks alive"
}

two_jobs_in_a_step() {
  # shellcheck disable=SC2016
  submit --nodes=2 --output=two.out --wrap='srun sh -c "$ddprun sh -c \"echo first \\\$RANK of \\\$WORLD_SIZE\" &&
    $ddprun --nproc-per-node=2 sh -c \"echo second \\\$RANK of \\\$WORLD_SIZE\""'
  expect_end COMPLETED 0:0
  expect_line two.out "first 0 of 2"
  expect_line two.out "first 1 of 2"
  for rank in 0 1 2 3; do expect_line two.out "second $rank of 4"; done
  passed "two jobs one after the other in a step"
}

# A worker submits the next job, which inherits its variables, and waits for the nodes until this one has ended.
submitted_by_a_worker() {
  cat >next.sh <<'BATCH'
#!/bin/sh
#SBATCH --nodes=2 --output=next.out
srun $ddprun --nproc-per-node=2 --join-timeout=30 sh -c 'echo next: rank $RANK of $WORLD_SIZE'
BATCH
  # shellcheck disable=SC2016
  submit --nodes=2 --output=submitting.out --wrap='srun $ddprun sh -c "[ \$RANK = 1 ] || sbatch --parsable next.sh > next.job"'
  expect_end COMPLETED 0:0
  job=$(cat next.job)
  expect_end COMPLETED 0:0
  for rank in 0 1 2 3; do expect_line next.out "next: rank $rank of 4"; done
  passed "a job that a worker submits is one over both nodes"
}

# A program that does not end by itself, with a child that ignores SIGTERM; and the pid of each node's ddprun.
endless() {
  rm -f ready.* pid.* code.*
  cat >program.sh <<'PROGRAM'
(trap '' TERM; sleep 1000) &
touch "ready.$RANK"
wait
PROGRAM
  # shellcheck disable=SC2016
  submit --nodes=2 --output="$1.out" --wrap='srun sh -c "$ddprun --nproc-per-node=2 --shutdown-timeout=1 sh ./program.sh &
    echo \$! > pid.\$SLURM_NODEID; wait \$!; code=\$?; echo \$code > code.\$SLURM_NODEID; exit \$code"'
  until_true exist ready.0 ready.1 ready.2 ready.3 pid.0 pid.1
}

cancelled() {
  endless cancelled
  scancel "$job"
  until_true is_over
  has JobState CANCELLED || fail "expected state CANCELLED"
  nothing_left
  passed "scancel leaves nothing on either node"
}

# lost NODE: its ddprun is killed; the other one ends what it has.
lost() {
  endless "lost$1"
  kill -KILL "$(cat "pid.$1")"
  until_true exist "code.$((1 - $1))"
  [ "$(cat "code.$((1 - $1))")" = 125 ] || fail "expected 125 of the ddprun of the other node"
  expect_end FAILED 137:0
  passed "node $1 is lost"
}

exit_code
readme_line
several_tasks_a_node
excluded
silent_tasks
two_jobs_in_a_step
submitted_by_a_worker
cancelled
lost 0
lost 1
