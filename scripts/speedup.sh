#!/usr/bin/env bash
# Trains the same task on different numbers of ranks in turn and compares them: a table of time, speed-up and
# efficiency on stdout, and a picture. The batch size is per rank.
#
# usage: scripts/speedup.sh TASK N [N ...] [-- worker flags]
#        scripts/speedup.sh mnist 1 2 4 -- --epochs 1 --limit-train 12800
#
# SPEEDUP_OUT names the folder for the runs and speedup.svg (runs/speedup-TASK), SPEEDUP_BIN that of the programs
# (build/bin). The ranks share this machine's cores.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then usage; fi

wrong_usage() { say "error: $*, see --help"; exit 2; }

(($# >= 2)) || wrong_usage "expected TASK and numbers of ranks, got '$*'"
task=$1
shift
ranks=()
while (($# > 0)) && [ "$1" != -- ]; do
  [[ $1 =~ ^[1-9][0-9]*$ ]] || wrong_usage "expected a number of ranks, got '$1'"
  ranks+=("$1")
  shift
done
((${#ranks[@]} > 0)) || wrong_usage "expected numbers of ranks before --"
if (($# > 0)); then shift; fi

bin=${SPEEDUP_BIN:-$root/build/bin}
out=${SPEEDUP_OUT:-runs/speedup-$task}
runs=()
for n in "${ranks[@]}"; do
  say "$task on $n rank(s)"
  # One thread per rank, even for a single rank, which would otherwise use the whole machine.
  OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} "$bin/ddprun" --nproc-per-node="$n" "$bin/worker" "$task" "$@" --out "$out/$n" \
    --overwrite --no-progress >&2
  runs+=("$out/$n")
done
python3 "$root/scripts/speedup.py" "${runs[@]}" --picture "$out/speedup.svg"
say "picture: $out/speedup.svg"
