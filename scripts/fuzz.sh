#!/usr/bin/env bash
# Builds the fuzz targets and runs each for a while, starting from the committed inputs and those found before
# (build-fuzz/corpus). Fails if a target breaks an invariant and names the input; add that to tests/fuzz/corpus or
# worker_corpus together with the fix.
#
# usage: scripts/fuzz.sh [SECONDS per target; 10] [TARGET...]
#        scripts/fuzz.sh --build      only builds
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then usage; fi

only_build=no
if [ "${1:-}" = --build ]; then only_build=yes && shift; fi
seconds=${1:-10}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { say "error: expected seconds, got '$seconds'"; exit 2; }
shift $(($# > 0 ? 1 : 0))
cd "$root"

has_fuzzer() {
  local program
  program=$(mktemp) || return
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    clang++ -fsanitize=fuzzer -x c++ - -o "$program" 2>/dev/null
  local status=$?
  rm -f "$program"
  return $status
}
has_fuzzer || { say "skipped: no clang++ with libFuzzer here: run scripts/setup.sh --dev"; exit 4; }

step "configuring (fuzz)" cmake --preset fuzz -DDDPRUN_WERROR="$([ -z "${CI:-}" ] && echo OFF || echo ON)"
step "building (fuzz)" cmake --build --preset fuzz -j "$(jobs)" >&2
[ "$only_build" = no ] || exit 0

targets=("$@")
[ $# != 0 ] || targets=($(ls tests/fuzz/corpus) $(ls tests/fuzz/worker_corpus))
findings=$root/build-fuzz/findings
mkdir -p "$findings"
# In memory, because the targets write many files. We remove it, because a crashing target leaves its files behind.
scratch=$(mktemp -d /dev/shm/ddprun-fuzz.XXXXXX 2>/dev/null || mktemp -d "$root/build-fuzz/tmp.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# try_target TARGET: leaves $scratch/TARGET.failed if it found something.
try_target() {
  local target=$1 log=build-fuzz/$1.log
  mkdir -p "build-fuzz/corpus/$target" "$scratch/$target"
  # The seeds come second, because new inputs are written to the first folder.
  if TMPDIR=$scratch/$target "build-fuzz/bin/fuzz_$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=4096 \
    -artifact_prefix="$findings/$target-" "build-fuzz/corpus/$target" tests/fuzz/*corpus/"$target" >"$log" 2>&1; then
    say "$target: $(sed -n 's/^Done \([0-9]*\) runs.*/\1 inputs/p' "$log")"
  else
    say "$target: FAILED"
    grep -a -E '^broken|ERROR: |runtime error|Test unit' "$log" >&2 || tail -n 20 "$log" >&2
    touch "$scratch/$target.failed"
  fi
}

# Each takes one CPU.
running=0
for target in "${targets[@]}"; do
  if ((running == $(jobs))); then wait -n; running=$((running - 1)); fi
  try_target "$target" &
  running=$((running + 1))
done
wait
failed=$(find "$scratch" -maxdepth 1 -name '*.failed' | wc -l)
say "$((${#targets[@]} - failed)) of ${#targets[@]} targets found nothing"
[ "$failed" = 0 ]
