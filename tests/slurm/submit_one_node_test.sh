#!/usr/bin/env bash
# scripts/slurm/submit_one_node.sh, submitted to a real Slurm, trains on one node, with a worker for each GPU.
# usage: with_slurm.sh submit_one_node_test.sh DDPRUN WORKER      (exit status 4: skipped)
script=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../scripts/slurm/submit_one_node.sh")
PATH=$(dirname "$(realpath "$1")"):$(dirname "$(realpath "$2")"):$PATH
# shellcheck source=tests/slurm/jobs.sh
source "$(dirname "${BASH_SOURCE[0]}")/jobs.sh"
[ -d /usr/share/datasets/fashion-mnist ] || {
  echo "skipped: Fashion-MNIST (package dataset-fashion-mnist) is not installed"
  exit 4
}

trains() {
  submit --job-name=small "$script" worker mnist --device=cpu --data=fashion-mnist --limit-train=640 --limit-test=500 --batch-size=32 \
    --epochs=1 --out=small
  expect_end COMPLETED 0:0
  expect_line "small-$job.out" "job $job on .*, GPUs: 0,1"
  expect_line "small-$job.out" "ddprun .*, 2 workers with OMP_NUM_THREADS=2, program: worker mnist .*"
  expect_line "small-$job.out" "Training mnist on 2 ranks, 640 training and 500 test examples from .*/fashion-mnist"
  expect_line "small-$job.err" \
    "ddprun: rank 1 of 2: local rank 1 on .*, pid [0-9]+, MASTER_ADDR=127.0.0.1 MASTER_PORT=[0-9]+ CUDA_VISIBLE_DEVICES=0,1"
  [ -s small/checkpoints/last.pt ] || fail "no checkpoint"
  passed "submit_one_node.sh trains on one node"
}

# Two at once, on one node: each finds its own port. And a program's failure is the job's.
runs_beside_another() {
  # shellcheck disable=SC2016
  local first second
  submit --nodelist=127.0.0.1 --gres=none --output=first.out --error=first.err "$script" \
    sh -c 'touch first.$RANK; until [ -e second.0 ]; do sleep 0.1; done; exit $((RANK * 9))'
  first=$job
  submit --nodelist=127.0.0.1 --gres=none --output=second.out --error=second.err "$script" \
    sh -c 'until [ -e first.1 ]; do sleep 0.1; done; touch second.$RANK'
  second=$job
  job=$first expect_end FAILED 9:0
  job=$second expect_end COMPLETED 0:0
  port() { sed -n 's/.*rank 0 of 2.* MASTER_PORT=//p' "$1"; }
  [ "$(port first.err)" != "$(port second.err)" ] || fail "expected two ports, got $(port first.err) twice"
  passed "two jobs of submit_one_node.sh share a node"
}

trains
runs_beside_another
