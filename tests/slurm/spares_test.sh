#!/usr/bin/env bash
# Two of three nodes of a real Slurm train, the third stands by. One node more takes the place of one that a test ends.
# usage: with_slurm.sh spares_test.sh DDPRUN
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

# On each node; leaves its name and the pid of its ddprun.
cat >node.sh <<'NODE'
echo "$SLURMD_NODENAME" >"name.$SLURM_NODEID"
echo $$ >"pid.$SLURM_NODEID"
exec "$ddprun" --spares=1 --max-restarts=1 --preflight='[ $SLURM_NODEID != "$(cat bad)" ] || { echo "no GPU"; exit 1; }' sh ./program.sh
NODE

# Nodes that a test has ended: a registration that was on its way can make Slurm take one for usable again.
ended=()

# train OUTPUT [salloc]: starts the job with sbatch, whose srun runs on the first node, or with salloc, whose srun runs here.
train() {
  local step="srun --no-kill --kill-on-bad-exit=0 sh ./node.sh" nodes=(--nodes=3 --no-kill)
  [ "${#ended[@]}" = 0 ] || nodes+=("--exclude=$(IFS=, && echo "${ended[*]}")")
  rm -f go ready.* pid.*
  touch begin
  if [ $# = 1 ]; then
    submit "${nodes[@]}" --output="$1" --wrap="$step"
  else
    # shellcheck disable=SC2086 # words
    salloc "${nodes[@]}" $step >"$1" 2>&1 &
  fi
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

# A node with a worker, other than the first.
other_node() { find . -name 'ready.[12].*' | head -n 1 | cut -d. -f3; }

# lost coordinator|other: a ddprun is killed, that of node 0 or of another node with a worker.
lost() {
  local rank node=0
  train "$1.out"
  [ "$1" = coordinator ] || node=$(other_node)
  touch killed
  kill -KILL "$(cat "pid.$node")"
  until_true two_ready_since killed
  touch go
  expect_end FAILED 137:0
  for rank in 0 1; do expect_line "$1.out" "rank $rank of 2 on node [^$node]"; done
  passed "the job goes on if a ddprun is killed: $1"
}

# lose_node NODE: all that runs there ends, and Slurm learns of it.
lose_node() {
  local name ddprun_pid slurmd_pid
  name=$(cat "name.$1") ddprun_pid=$(cat "pid.$1")
  ended+=("$name")
  slurmd_pid=$(cat "$(dirname "$SLURM_CONF")/slurmd.$name.pid")
  touch killed
  kill -KILL "$slurmd_pid" "$(ps -o ppid= -p "$ddprun_pid")" "$ddprun_pid"
  scontrol update nodename="$name" state=DOWN reason=lost
  until_true two_ready_since killed
  touch go
}

lost_other_node() {
  local node rank
  train node.out
  node=$(other_node)
  lose_node "$node"
  expect_end COMPLETED 0:0
  for rank in 0 1; do expect_line node.out "rank $rank of 2 on node [^$node]"; done
  passed "the job goes on if a node is lost"
}

lost_first_node() {
  local rank
  train first.out salloc
  lose_node 0
  wait $! || fail "salloc ended with $?"
  for rank in 0 1; do expect_line first.out "rank $rank of 2 on node $((rank + 1))"; done
  passed "the job goes on if its first node is lost"
}

# kept_out NODE CODE: its preflight fails, and the spare takes its place. If it has the coordinator, it ends with the job.
kept_out() {
  local rank
  echo "$1" >bad
  rm -f go ready.*
  touch begin
  submit --nodes=3 --no-kill --output="out$1.out" --wrap="srun --kill-on-bad-exit=0 sh ./node.sh"
  until_true two_ready_since begin
  until_true grep -q "stays out" "out$1.out"
  touch go
  expect_end "$([ "$2" = 0 ] && echo COMPLETED || echo FAILED)" "$2:0"
  for rank in 0 1; do expect_line "out$1.out" "rank $rank of 2 on node [^$1]"; done
  expect_line "out$1.out" "ddprun: warning: refused: node .* stays out: --preflight failed: exit code 1: no GPU"
  echo none >bad
  passed "a spare takes the place of node $1, which fails its preflight"
}

# Slurm kills the others as soon as the ddprun of an unfit node has ended with 125.
killed_with_it() {
  echo 1 >bad
  rm -f go
  submit --nodes=3 --no-kill --output=killed.out --wrap="srun --kill-on-bad-exit=1 sh ./node.sh"
  until_true is_over
  has JobState FAILED || fail "expected state FAILED"
  nothing_left
  expect_line killed.out "srun: .*Terminating StepId.*"
  echo none >bad
  passed "srun --kill-on-bad-exit ends the job with the node that stays out"
}

echo none >bad
unneeded
kept_out 0 0
kept_out 1 125
killed_with_it
lost coordinator
lost other
lost_other_node
lost_first_node
