# What the tests of Slurm share; sourced, in a Slurm of with_slurm.sh. They run in their own temporary folder.
# shellcheck shell=bash
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'scancel --quiet --user="$(id -un)" || true; rm -rf "$folder"' EXIT
job=

fail() {
  echo "FAILED: $1"
  [ -z "$job" ] || scontrol show job "$job" || true
  tail -n 100 ./*.out ./*.err 2>/dev/null
  exit 1
}

# until_true CONDITION...: for a minute at most
until_true() {
  local begin=$SECONDS
  until "$@"; do
    ((SECONDS - begin < 60)) || fail "still not: $*"
    sleep 0.1
  done
}

# submit SBATCH-ARGUMENTS...: sets job
submit() { job=$(sbatch --parsable "$@"); }

# field NAME: of the job, as JobState
field() { scontrol --oneliner show job "$job" | tr ' ' '\n' | sed -n "s/^$1=//p"; }
has() { [ "$(field "$1")" = "$2" ]; }
is_over() { [[ ! $(field JobState) =~ ^(PENDING|CONFIGURING|RUNNING|COMPLETING|REQUEUED)$ ]]; }

# expect_end STATE CODE[:SIGNAL]
expect_end() {
  until_true is_over
  has JobState "$1" || fail "expected state $1"
  has ExitCode "$2" || fail "expected exit code $2"
  nothing_left
}

# All processes of the job, on both nodes.
processes() { grep -lszxF "SLURM_JOB_ID=$job" /proc/[0-9]*/environ | cut -d/ -f3; }
none_left() { [ -z "$(processes)" ]; }
nothing_left() { until_true none_left; }

exist() {
  local file
  for file in "$@"; do [ -e "$file" ] || return 1; done
}
expect_line() { grep -qxE "$2" "$1" || fail "expected a line in $1: $2"; }
passed() { echo "passed: $1, $SECONDS s"; }
