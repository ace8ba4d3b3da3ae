#!/usr/bin/env bash
# Measures clean builds for bench/RESULTS.md: clones the last commit and builds it on two cores without ccache. Prints wall and CPU
# seconds of ddprun, of both programs, and of everything, each counted from the start. Takes about 9 minutes.
#
# usage: scripts/build_times.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then usage; fi

export CCACHE_DISABLE=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git clone --quiet "$root" "$folder/ddprun"
cd "$folder/ddprun"
cmake --preset release >/dev/null

wall=0 cpu=0
# build WHAT TARGET...: adds to both sums.
build() {
  local what=$1 seconds
  shift
  seconds=$(TIMEFORMAT='%R %U %S' && { time taskset -c 0,1 cmake --build build -j2 --target "$@" >"$folder/log" 2>&1; } 2>&1) ||
    { cat "$folder/log"; die "cannot build $what"; }
  read -r wall cpu < <(awk -v wall="$wall" -v cpu="$cpu" '{print wall + $1, cpu + $2 + $3}' <<<"$seconds")
  printf '%-20s %6.0f s  %6.0f CPU s\n' "$what" "$wall" "$cpu"
}
build "ddprun" ddprun
build "both programs" ddprun worker
build "everything" all
