#!/usr/bin/env bash
# From nothing to a trained model: installs what is missing, builds, and trains the MNIST CNN on two ranks over Gloo,
# one epoch of Fashion-MNIST. About a minute once everything is built.
#
# usage: scripts/quickstart.sh [worker flags, such as --epochs 3]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then usage; fi

cd "$root"
if [ ! -x build/bin/ddprun ]; then
  scripts/setup.sh --no-libtorch
  scripts/build.sh --launcher
  say "ddprun is ready and runs any program: build/bin/ddprun --nproc-per-node=2 python3 train.py"
  say "next: LibTorch (a download of 545 MB), then worker, which takes about 3 minutes to build on two cores"
fi
scripts/setup.sh
scripts/build.sh --programs

out=runs/quickstart
say "training on 2 ranks: build/bin/ddprun --nproc-per-node=2 build/bin/worker mnist --data fashion-mnist"
build/bin/ddprun --nproc-per-node=2 build/bin/worker mnist --data fashion-mnist --epochs 1 "$@" --out "$out" --overwrite

accuracy=$(sed -n 's/.*"test_acc": \([0-9.e-]*\).*/\1/p' "$out/summary.json")
cat <<EOF

Test accuracy: $(awk -v a="$accuracy" 'BEGIN {printf "%.2f", 100 * a}') %
Checkpoint:    $out/checkpoints/last.pt   (Python: torch.load("$out/checkpoints/last.pt")["model"])
Metrics:       $out/metrics.csv, $out/summary.json

Next:
  build/bin/ddprun --nproc-per-node=2 build/bin/worker mnist --epochs 5    a longer training
  build/bin/worker mnist --help                                            its flags
  build/bin/ddprun --nproc-per-node=2 python3 train.py                     any program of yours, as under torchrun
  scripts/test.sh                                                          all tests
EOF
awk -v a="$accuracy" 'BEGIN {exit !(a >= 0.85)}' || die "test accuracy $accuracy, expected at least 0.85"
