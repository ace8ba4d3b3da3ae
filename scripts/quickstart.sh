#!/usr/bin/env bash
# From nothing to a trained model: installs what is missing, builds, and trains the MNIST CNN on two ranks, one epoch of
# Fashion-MNIST. About a minute once everything is built. Where there is an NVIDIA driver, it also fetches what a GPU needs
# (a download of 2.2 GB) and builds the CUDA plug-in: the ranks then train on GPUs, over NCCL if each has its own.
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
cuda=()
if has_nvidia_driver; then
  say "there is an NVIDIA driver: the build gets the CUDA plug-in"
  if scripts/setup.sh --cuda; then cuda=(--cuda); else say "warning: going on without what a GPU needs (see above); the ranks train on the CPU"; fi
fi
((${#cuda[@]} > 0)) || scripts/setup.sh
scripts/build.sh --programs ${cuda[@]+"${cuda[@]}"}

out=runs/quickstart
say "training on 2 ranks: build/bin/ddprun --nproc-per-node=2 build/bin/worker mnist --data fashion-mnist"
build/bin/ddprun --nproc-per-node=2 build/bin/worker mnist --data fashion-mnist --epochs 1 "$@" --out "$out" --overwrite

# recorded NAME: a text that the run has recorded of where it ran.
recorded() { sed -n 's/.*"'"$1"'": "\([^"]*\)".*/\1/p' "$out/environment.json"; }
backend=$(recorded backend) device=$(recorded device)
why=
if [ "$backend" = gloo ] && [ "$device" != cpu ]; then why=" (NCCL needs a GPU for each rank)"; fi
accuracy=$(sed -n 's/.*"test_acc": \([0-9.e-]*\).*/\1/p' "$out/summary.json")
cat <<EOF

Test accuracy: $(awk -v a="$accuracy" 'BEGIN {printf "%.2f", 100 * a}') %
Checkpoint:    $out/checkpoints/last.pt   (Python: torch.load("$out/checkpoints/last.pt")["model"])
Metrics:       $out/metrics.csv, $out/summary.json
Backend:       $backend, on $device$why

Next:
  build/bin/ddprun --nproc-per-node=2 build/bin/worker mnist --epochs 5    a longer training
  build/bin/worker mnist --help                                            its flags
  build/bin/ddprun --nproc-per-node=2 python3 train.py                     any program of yours, as under torchrun
  export PYTHONPATH="\$PWD/packaging"                                       for "import ddprun" in Python, unless you pip install .
  scripts/test.sh                                                          build and run all tests
EOF
awk -v a="$accuracy" 'BEGIN {exit !(a >= 0.85)}' || die "test accuracy $accuracy, expected at least 0.85"
