#!/bin/sh
# Slurm's pattern for jobs that are preempted or run out of time, with a real Slurm: SIGUSR1 to the job step reaches
# every worker, which saves and exits with 0, and the job run again goes on from there. See docs/launcher.md.
#
# usage: preemption_test.sh DDPRUN      (exit status 4: skipped)
set -eu
ddprun=$1
command -v sbatch >/dev/null || { echo "skipped: no Slurm here"; exit 4; }
[ -n "$(sinfo --noheader --states=idle 2>/dev/null)" ] || { echo "skipped: no idle node of a Slurm cluster"; exit 4; }
folder=$(mktemp -d)
job=
trap '[ -z "$job" ] || scancel "$job" 2>/dev/null; rm -rf "$folder"' EXIT
cd "$folder"

cat > train.sh <<'PROGRAM'
trap 'echo "rank $RANK saved"; touch "saved.$RANK"; exit 0' USR1
if [ -e "saved.$RANK" ]; then echo "rank $RANK goes on"; touch "done.$RANK"; exit 0; fi
touch "ready.$RANK"
while :; do sleep 0.1; done
PROGRAM
cat > job.sh <<SCRIPT
#!/bin/sh
#SBATCH --nodes=1 --ntasks=1 --output=job.out --open-mode=append
srun "$ddprun" --nproc-per-node=2 --shutdown-timeout=25 sh ./train.sh
echo "srun: exit code \$?"
SCRIPT

fail() { echo "FAILED: $1"; cat job.out 2>/dev/null; exit 1; }
# until CONDITION...: for 30 s at most
until_true() {
  for _ in $(seq 150); do "$@" && return; sleep 0.2; done
  fail "still not: $*"
}
is_over() { [ -z "$(squeue --noheader --jobs="$job" 2>/dev/null)" ]; }
both() { [ -e "$1.0" ] && [ -e "$1.1" ]; }

job=$(sbatch --parsable job.sh)
until_true both ready
scancel --signal=USR1 "$job" # as Slurm's --signal=USR1@SECONDS does: to the job step, not to the batch script
until_true is_over
both saved || fail "a worker did not get SIGUSR1"
[ ! -e done.0 ] || fail "a worker was done at once"
grep -q "srun: exit code 0" job.out || fail "ddprun did not end with 0"

job=$(sbatch --parsable job.sh)
until_true is_over
both "done" || fail "a worker did not go on"
echo "passed"
