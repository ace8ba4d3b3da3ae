#!/usr/bin/env bash
# Builds and runs the tests that need an NVIDIA GPU, and two short trainings on it, one as a CUDA graph; with the tests' Python, also
# ddprun.elastic. Exits with 4 without a GPU.
#
# usage: scripts/gpu_check.sh [ctest arguments, such as -R NCCL]
#        scripts/gpu_check.sh --bundle DIR --torch .../site-packages/torch [--out DIR] [--cifar10 DIR]
#
# With --bundle it builds nothing, and checks what gpu_bundle.sh made; see gpu_bundle/check.py.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then usage; fi
if [ "${1:-}" = --bundle ]; then exec python3 "$(dirname "${BASH_SOURCE[0]}")/gpu_bundle/check.py" "$@"; fi

cd "$root"
if ! python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL("libcuda.so.1").cuInit(0))' 2>/dev/null; then
  say "no usable NVIDIA GPU here (libcuda.so.1 cannot be loaded, or cuInit fails): nothing is checked"
  exit 4
fi
scripts/setup.sh --cuda
scripts/build.sh
[ -n "$(find build -name libddprun_cuda.so -print -quit)" ] || die "the CUDA plug-in was not built: see 'CUDA plug-in' in the output of cmake"
ctest --test-dir build -L gpu --output-on-failure --no-tests=error "$@"
build/bin/worker env --device cuda
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
build/bin/ddprun --nproc-per-node=2 build/bin/worker mnist --device cuda --max-steps 3 --data fashion-mnist --out "$out/run"
build/bin/worker mnist --device cuda --max-steps 16 --cuda-graph on --data fashion-mnist --out "$out/graph"
python=${DDPRUN_TEST_PYTHON:-$(test_python_folder)/bin/python}
if [ -x "$python" ]; then
  DDPRUN_TEST_PYTHON=$python python3 tests/packages/elastic_test.py build/bin/ddprun OnGpu
else
  say "skipped: ddprun.elastic, for want of a Python with torch (scripts/setup.sh --python)"
fi
