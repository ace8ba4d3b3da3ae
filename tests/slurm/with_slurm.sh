#!/usr/bin/env bash
# Runs a command with a real, private Slurm, beside any other: munge, slurmctld and two nodes on this machine
# (SLURM_TEST_NODES=4: four), 127.0.0.1 and 127.0.0.2, which is what their names are, so that nothing has to know them.
# Everything lies in a temporary folder that SLURM_CONF points into. No root is needed, and all is ended in the end, also if this script is killed.
# To try a batch script by hand: tests/slurm/with_slurm.sh bash
#
# usage: with_slurm.sh COMMAND...      (exit status 4: skipped, as there can be no Slurm here; else COMMAND's)
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

skip() { echo "skipped: $1"; exit 4; }
for program in munged slurmctld slurmd sbatch; do
  command -v "$program" >/dev/null || skip "no $program here (packages slurm-wlm, munge)"
done

nodes=${SLURM_TEST_NODES:-2}
unset "${!SLURM_@}" "${!SBATCH_@}" "${!SRUN_@}" # of another Slurm
folder=$(mktemp -d)
chmod 755 "$folder" # munge wants its socket to be reachable for all
conf=$folder/slurm.conf

# Processes of this Slurm: its daemons, its jobs, and the command.
ours() { env -u SLURM_CONF grep -lszxF "SLURM_CONF=$conf" /proc/[0-9]*/environ | cut -d/ -f3; }
signal_ours() {
  local pid
  for pid in $(ours); do kill "-$1" "$pid" 2>/dev/null || true; done
}
end_all() {
  signal_ours TERM
  for _ in $(seq 30); do
    [ -n "$(ours)" ] || break
    sleep 0.1
  done
  signal_ours KILL
  rm -rf "$folder"
}
# In its own process group, and not a child of this script: neither Ctrl-C nor what ends this script ends it.
detached() (
  set -m
  "$@" &
)
# Sees its pipe close when the script is gone, for whatever reason.
guard() {
  trap '' HUP INT QUIT TERM
  exec 9>&- >/dev/null 2>&1
  cat "$folder/alive" || true
  end_all
}
mkfifo "$folder/alive"
detached guard
exec 9>"$folder/alive"
finish() {
  unset SLURM_CONF # this script's own sleep is none of ours
  exec 9>&-
  while [ -d "$folder" ]; do sleep 0.05; done
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# The first of some ports in a row that are free, for slurmctld and each node; below those that the kernel gives away by itself.
free_ports() {
  python3 - "$nodes" <<'PYTHON'
import random, socket, sys
for first in random.sample(range(10000, 19990), 100):
    sockets = [socket.socket() for _ in range(int(sys.argv[1]) + 1)]
    try:
        for i, s in enumerate(sockets):
            s.bind(("", first + i))
    except OSError:
        continue
    print(first)
    break
PYTHON
}

# Job numbers begin anywhere, as ddprun makes ports of them. CPUs and GPUs are more than there may be: they are only counted.
write_conf() {
  local port host user
  port=$(free_ports) host=$(uname -n) user=$(id -un)
  cat >"$conf" <<CONF
ClusterName=ddprun-tests
SlurmctldHost=${host%%.*}(127.0.0.1)
SlurmUser=$user
SlurmdUser=$user
SlurmctldPort=$port
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.%n.log
SlurmdParameters=config_overrides
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
SwitchType=switch/none
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
ReturnToService=2
KillWait=5
FirstJobId=$((RANDOM + 1))
GresTypes=gpu
NodeName=127.0.0.[1-$nodes] NodeAddr=127.0.0.[1-$nodes] NodeHostname=${host%%.*} Port=[$((port + 1))-$((port + nodes))] CPUs=8 Gres=gpu:2
PartitionName=test Nodes=ALL Default=YES State=UP OverSubscribe=FORCE
CONF
  # No cgroup is used, but slurmd loads a plugin; the one that it finds by itself wants more than a container has.
  echo "CgroupPlugin=cgroup/v1" >"$folder/cgroup.conf"
  printf "Name=gpu File=%s\n" /dev/null /dev/zero >"$folder/gres.conf" # any two files will do
}

# start NAME COMMAND...: its output to NAME.out
start() {
  local name=$1
  shift
  detached "$@" 9>&- </dev/null >"$folder/$name.out" 2>&1
}

start_slurm() {
  mkdir "$folder/state"
  (umask 077; head -c 128 /dev/urandom >"$folder/munge.key")
  write_conf
  export SLURM_CONF=$conf
  start munged munged --foreground --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
    --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" --seed-file="$folder/munged.seed"
  start slurmctld slurmctld -D
  local node begin=$SECONDS
  for ((node = 1; node <= nodes; ++node)); do
    mkdir "$folder/spool.127.0.0.$node"
    start "slurmd.$node" slurmd -D -N "127.0.0.$node"
  done
  while ((SECONDS - begin < 20)); do
    if [ "$(timeout 5 sinfo --noheader --format=%T 2>/dev/null)" = idle ]; then return; fi
    sleep 0.1
  done
  tail -n 5 "$folder"/*.out
  skip "the nodes of Slurm are not idle after 20 s, see above"
}

start_slurm
"$@" 9>&-
