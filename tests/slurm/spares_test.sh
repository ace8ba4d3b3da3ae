#!/usr/bin/env bash
# Two of three nodes of a real Slurm train, the third stands by. usage: with_slurm.sh spares_test.sh DDPRUN
ddprun=$(realpath "$1")
# shellcheck source=tests/slurm/jobs.sh
source "$(dirname "${BASH_SOURCE[0]}")/jobs.sh"
export ddprun

cat >program.sh <<'PROGRAM'
touch "ready.$SLURM_NODEID.$$"
until [ -e go ]; do sleep 0.1; done
echo "rank $RANK of $WORLD_SIZE on node $SLURM_NODEID"
PROGRAM

# two_ready_since FILE: workers, on two nodes
two_ready_since() { [ "$(find . -name 'ready.*' -newer "$1" | wc -l)" = 2 ]; }

# train OUTPUT: starts the job. The nodes leave the pid of their ddprun.
train() {
  rm -f go ready.* pid.*
  touch begin
  # shellcheck disable=SC2016 # of the shell on the node
  submit --nodes=3 --no-kill --output="$1" --wrap='srun --no-kill --kill-on-bad-exit=0 sh -c "
    echo \$\$ > pid.\$SLURM_NODEID; exec \$ddprun --spares=1 --max-restarts=1 sh ./program.sh"'
  until_true two_ready_since begin
  until_true grep -q "standing by" "$1"
}

unneeded() {
  train unneeded.out
  touch go
  expect_end COMPLETED 0:0
  expect_line unneeded.out "ddprun: the job .* ended without this node: all workers succeeded"
  passed "a spare that is not needed does not fail the job"
}

# lost coordinator|other: a ddprun is killed, that of node 0 or of another node with a worker.
lost() {
  local rank node=0
  train "$1.out"
  [ "$1" = coordinator ] || node=$(find . -name 'ready.[12].*' | head -n 1 | cut -d. -f3)
  touch killed
  kill -KILL "$(cat "pid.$node")"
  until_true two_ready_since killed
  touch go
  expect_end FAILED 137:0
  for rank in 0 1; do expect_line "$1.out" "rank $rank of 2 on node [^$node]"; done
  passed "the job goes on if a ddprun is killed: $1"
}

unneeded
lost coordinator
lost other
