#!/usr/bin/env bash
# scripts/slurm/submit_ddp.sh, submitted to a real Slurm, trains on two nodes.
# usage: with_slurm.sh submit_ddp_test.sh DDPRUN WORKER      (exit status 4: skipped)
script=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../scripts/slurm/submit_ddp.sh")
PATH=$(dirname "$(realpath "$1")"):$(dirname "$(realpath "$2")"):$PATH
# shellcheck source=tests/slurm/jobs.sh
source "$(dirname "${BASH_SOURCE[0]}")/jobs.sh"
[ -d /usr/share/datasets/fashion-mnist ] || {
  echo "skipped: Fashion-MNIST (package dataset-fashion-mnist) is not installed"
  exit 4
}

trains() {
  submit --job-name=small "$script" worker mnist --data=fashion-mnist --limit-train=640 --limit-test=500 --batch-size=32 \
    --epochs=1 --out=small
  expect_end COMPLETED 0:0
  local out=small-$job.out
  expect_line "$out" "job $job on 2 nodes: 127\.0\.0\.\[1-2\], from .*"
  expect_line "$out" "each: 2 workers with OMP_NUM_THREADS=2, 4 CPUs, GPUs: none"
  expect_line "$out" "Training mnist on 4 ranks, 640 training and 500 test examples from .*/fashion-mnist"
  python3 - <<'PYTHON' || fail "the run's summary.json is not as expected"
import json
summary = json.load(open("small/summary.json"))
print(summary)
assert summary["world_size"] == 4 and summary["epochs"] == 1 and summary["steps"] == 5
assert summary["train_loss"] < 2.5 and 0.15 < summary["test_acc"] < 1  # five steps; without any it is 0.1
PYTHON
  [ -s small/checkpoints/last.pt ] || fail "no checkpoint"
  passed "submit_ddp.sh trains on two nodes"
}

# What the command line of sbatch says wins, and with GPUs there is a worker for each.
takes_flags() {
  # shellcheck disable=SC2016
  submit --nodes=1 --cpus-per-task=6 --gres=gpu:2 --output=gpus.out --error=gpus.err "$script" \
    sh -c 'echo "rank $RANK of $WORLD_SIZE, $OMP_NUM_THREADS threads, $SRUN_CPUS_PER_TASK CPUs, GPUs $CUDA_VISIBLE_DEVICES"; exit $((RANK * 9))'
  expect_end FAILED 9:0
  expect_line gpus.out "each: 2 workers with OMP_NUM_THREADS=3, 6 CPUs, GPUs: 2"
  expect_line gpus.out "rank 1 of 2, 3 threads, 6 CPUs, GPUs 0,1"
  passed "submit_ddp.sh takes flags, and its exit code is the program's"
}

# A token on each node, in no output and no argument.
makes_a_token() {
  # shellcheck disable=SC2016
  WORKERS_PER_NODE=1 submit --output=token.out --error=token.err "$script" \
    sh -c 'tr "\0" "\n" < /proc/$PPID/environ | grep ^DDPRUN_TOKEN= > token.$RANK; echo "${DDPRUN_TOKEN-none}" > worker.$RANK'
  expect_end COMPLETED 0:0
  grep -qxE 'DDPRUN_TOKEN=[0-9a-f]{64}' token.0 || fail "expected a token of 64 digits in ddprun's environment"
  cmp token.0 token.1 || fail "expected the same token on both nodes"
  expect_line worker.1 none
  ! grep -F "$(cut -d= -f2 token.0)" token.out token.err || fail "the token is shown"
  passed "submit_ddp.sh makes a token"
}

trains_by_default() {
  submit --output=default.out --error=default.err "$script"
  has_begun() { grep -qs "^Train Epoch: 1" default.out || is_over; }
  until_true has_begun
  expect_line default.out "Training mnist on 4 ranks, 60000 training and 10000 test examples from .*"
  scancel "$job"
  until_true is_over
  has JobState CANCELLED || fail "expected state CANCELLED"
  nothing_left
  passed "submit_ddp.sh trains the sample by default"
}

trains
takes_flags
makes_a_token
trains_by_default
