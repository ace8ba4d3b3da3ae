#include "launcher/cli/options.h"

namespace ddprun::launcher {

std::string help_text() {
  return R"(ddprun: starts N copies of a program with torchrun's environment, and supervises them as one job.

usage: ddprun [flags] [--] PROGRAM [arguments]      (every word after PROGRAM is passed on unchanged)
  ddprun --nproc-per-node=2 train.py --lr 0.1         a .py file runs under python3 (or $PYTHON_EXEC)
  ddprun --nproc-per-node=2 -m my.module              a Python module too
  ddprun --nproc-per-node=2 ./worker mnist            anything else runs as it is

Workers
  --nproc-per-node N|cpu|gpu|auto  how many workers; cpu, gpu, xpu (Intel GPU): one for each; auto: gpu, else cpu [1]
  -m, --module, --no-python        PROGRAM is the name of a Python module; run it as it is, even if its name ends in .py
  --preload MODULE,...             import these Python modules or .py files once, and start every worker as a fork
  --expand                         replace ${local_rank} in PROGRAM and its arguments, and $$ by $
  --role NAME                      name of the workers in their prefix and in ROLE_NAME [default]
  --master-port PORT               port where the workers meet, MASTER_PORT [a free one, kept for the job]
  --rdzv-id ID                     name of the job, TORCHELASTIC_RUN_ID [random; on several nodes: none]

Several nodes: start one ddprun on each; under srun no flag is needed
  --nnodes N|MIN:MAX [--spares K]  number of nodes, plus K spares; MIN:MAX: start with at least MIN, grow to MAX [1]
  --rdzv-endpoint HOST[:PORT],...  the node where all nodes meet, and those that take its place [port 29400]
  --node-rank N, --master-addr HOST, --master-port PORT   alternatively: this node's number and node 0's address
  --local-addr HOST                address where other nodes reach this one [its address towards the endpoint]
  --token-file FILE                secret that all nodes share (or DDPRUN_TOKEN); without one, anyone may join
  --join-timeout SECONDS           give up if MIN nodes have not joined by then [600]
  --last-call SECONDS              once MIN nodes have joined, wait this long for more [30]
  --node-timeout SECONDS           a node that is silent this long counts as lost [10]

Where they run
  --numa-binding node|socket|exclusive|core-complex   bind each worker to CPUs, near its GPU if it has one
  --gpus 0,2-3|UUID,..., --virtual-local-rank   this node's GPUs, in order; each worker sees only one, as LOCAL_RANK 0

Output
  --prefix, --no-prefix            begin lines with role and local rank, as in [default0]: [if several share a terminal]
  --log-line-prefix-template TEXT, --timestamp   a prefix such as '${hostname}:${rank}: '; begin lines with the time
  --log-dir DIR                    log files: DIR/JOB/attempt_N/RANK/... [ddprun_logs, if files are requested]
  -r, --redirects 0|1|2|3|RANK:N,..  write 1 stdout, 2 stderr or 3 both to log files, not to the console
  -t, --tee 0|1|2|3|RANK:N,..      show these with a prefix, and write them to log files if --log-dir is given
  --local-ranks-filter RANK,..     show only the output of these workers
  --duplicate-stdout-filters, --duplicate-stderr-filters TEXT,..   copy lines with a TEXT to filtered_*.log
  --log-max-size BYTES[K|M|G]      at this size rename a log file to FILE.1 and start a new one

Failures, timeouts and signals
  --max-restarts N [--max-stalled-restarts K]   restart after a failure, N times; K in a row without a new step [0]
  --restart-backoff SECONDS        wait before the first restart, twice as long before each further one [0]
  --restart-window SECONDS         an attempt that runs this long resets the restart count
  --restart-on-codes CODE,..       restart only after these exit codes or signals, such as 1,3-5,SIGKILL [any failure]
  --recover all|rank [--standby N] rank: start only the failed worker again, or take one of N loaded processes [all]
  --timeout SECONDS                end the job after this time, restarts included
  --hang-timeout SECONDS           workers that show neither output nor a heartbeat this long have failed
  --shutdown-timeout SECONDS [--signal-group]   from SIGTERM to SIGKILL [30]; end a worker's processes all at once
  --signals-to-handle SIGNAL,..    signals that end the job [SIGTERM,SIGINT,SIGHUP,SIGQUIT]
  --forward-signals SIGNAL,..      signals that are only passed on to the workers [SIGUSR1,SIGUSR2]
  --result-json FILE, --events-json FILE   write how the job ended, each event as it happens
  --metrics-port PORT|ADDR:PORT    serve /metrics, /report, /status, /healthz [on loopback]

  --config FILE                    read flags from a TOML file, such as: nproc-per-node = 2
  --dry-run                        show what would start, and exit
  --show-ranks                     show each rank's host, process, addresses and GPUs as it starts
  -h, --help, --version, --print-completion bash|zsh   show this help, the version, the shell's completion script

Each flag can be written with underscores, as --flag VALUE or --flag=VALUE; if repeated, the last one wins.
Flags can also be set as DDPRUN_<FLAG>; torchrun's PET_<FLAG> work too. Also accepted: --standalone, --rdzv-conf,
--rdzv-backend c10d|static; ignored: --monitor-interval, --start-method, --run-path, --event-log-handler, --logs-specs

When a worker fails, ddprun stops the others and exits with its code, or 128 + its signal. Ctrl-C and SIGTERM end
the job; a second one ends it at once. Exit codes: 2 usage error, 124 timeout or hang, 125 ddprun's own failure,
126 PROGRAM is not executable, 127 PROGRAM not found
)";
}

}  // namespace ddprun::launcher
