# Functions for the scripts in this folder, which source it.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-}/.cache}/ddprun
torch_version=2.11.0
newest_torch_version=2.15.0 # the newest one tested; see cmake/FindLibTorch.cmake
# NVIDIA's libraries that Python loads with it, where those of tests/requirements.txt are too old or lack them.
newest_torch_needs=(nvidia-cuda-nvrtc==13.2.78 nvidia-nccl-cu13==2.30.7 nvidia-nvshmem-cu13==3.7.2)
libtorch=$cache/libtorch-$torch_version

# Ninja's progress line: share done, commands, seconds.
export NINJA_STATUS=${NINJA_STATUS:-'[%p, %f of %t, %e s] '}

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { say "error: $*"; exit 1; }

has_nvidia_driver() { [ -e /dev/nvidiactl ] || command -v nvidia-smi >/dev/null; }

# Prints the calling script's opening comment and exits.
usage() {
  sed -n '2,/^source/{/^source/d;s/^# \{0,1\}//;p}' "$0"
  exit 0
}

# Runs a step; announces it and says how long it took.
step() {
  local what=$1 begin=$SECONDS
  shift
  say "$what ..."
  "$@"
  say "$what: done in $((SECONDS - begin)) s"
}

# How many jobs memory allows: a file that includes LibTorch needs up to 2 GB.
jobs() {
  local cpus memory_gb
  cpus=$(nproc)
  memory_gb=$(awk '/MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
  local fit=$((memory_gb / 2))
  ((fit >= 1)) || fit=1
  echo $((cpus < fit ? cpus : fit))
}

# Where setup.sh --python puts the tests' Python; the folder depends on the packages.
test_python_folder() {
  printf '%s/test-python-%s\n' "$cache" "$(sha256sum <"$root/tests/requirements.txt" | cut -c1-12)"
}

# run_ctest BUILD ARGUMENTS...: uses that Python unless another is set, and with it the newest PyTorch where it is there, and
# lists the skipped and the failed tests at the end. Returns ctest's status.
run_ctest() {
  local report=$root/$1/tests.xml status=0 python newest=$cache/libtorch-cpu-$newest_torch_version
  python=$(test_python_folder)
  if [ -z "${DDPRUN_TEST_PYTHON:-}" ] && [ -e "$python/complete" ]; then export DDPRUN_TEST_PYTHON=$python/bin/python; fi
  if [ -z "${DDPRUN_TEST_NEWEST_TORCH:-}" ] && [ -e "$newest/complete" ] && [ -e "$newest/torch/__init__.py" ]; then export DDPRUN_TEST_NEWEST_TORCH=$newest; fi
  rm -f "$report"
  ctest --test-dir "$root/$1" -j "$(jobs)" --output-on-failure --no-tests=error --output-junit "$report" "${@:2}" || status=$?
  [ ! -s "$report" ] || python3 "$root/scripts/not_passed.py" "$report"
  return $status
}
