#include "launcher/cli/options.h"

namespace ddprun::launcher {

namespace {

constexpr char kHelp[] = R"(ddprun: starts N copies of a program with torchrun's environment, and supervises
them as one job.

usage: ddprun [flags] [--] PROGRAM [arguments]
  ddprun --nproc-per-node=2 train.py --lr 0.1   a .py file runs under python3
  ddprun --nproc-per-node=2 -m my.module        a Python module too
  ddprun --nproc-per-node=2 ./worker mnist      anything else runs as it is
Every word after PROGRAM is passed on unchanged. Python is $PYTHON_EXEC, else
python3.

Workers
  --nproc-per-node N       how many workers; cpu, gpu or xpu (Intel GPU): one
                           for each; auto: gpu if there is one, else cpu [1]
  -m, --module             PROGRAM is the name of a Python module
  --no-python              run PROGRAM as it is, even if its name ends in .py
  --preload MODULE,...     import these Python modules or .py files once, and
                           start every worker as a fork
  --expand                 replace ${local_rank} in PROGRAM and its arguments,
                           and $$ with $
  --role NAME              name of the workers in their prefix and in ROLE_NAME
                           [default]
  --master-port PORT       port where the workers meet, MASTER_PORT [a free
                           one, kept for the job]
  --rdzv-id ID             name of the job, TORCHELASTIC_RUN_ID [random; on
                           several nodes: none]

Several nodes: use --hosts, or start one ddprun on each (under srun, and usually
under mpirun, no flag is needed)
  --hosts HOST[:N],...     start ddprun on these hosts over ssh, with N workers
                           each, or --nproc-per-node
  --hostfile FILE          the same, with one host per line
  --ssh COMMAND            how to reach them [ssh]
  --ssh-env NAME,...       more variables to send to them; NCCL_* means all
                           whose names begin with NCCL_
  --ssh-ddprun PATH        path of ddprun there [this one's path, else the one
                           on PATH]
  --exclude HOST,...       hosts that take no part, such as node3,gpu[01-03]
  --nnodes N|MIN:MAX       number of nodes; MIN:MAX: start with at least MIN,
                           and grow to at most MAX [1]
  --spares K               K more nodes, which wait to replace a lost one [0]
  --rdzv-endpoint HOST[:PORT],...
                           the node where all nodes meet, and those that can
                           take its place [port 29400]
  --node-rank N            alternatively: this node's number ...
  --master-addr HOST       ... and the address of node 0, with --master-port
  --local-addr HOST        address where other nodes reach this one
  --token-file FILE        secret that all nodes share (or DDPRUN_TOKEN);
                           without one, anyone may join
  --preflight COMMAND|disk,shm,clock,gpus
                           a node joins only after this shell command, or these
                           checks of ddprun, have succeeded on it
  --preflight-timeout SECONDS
                           how long the checks may take [120]
  --join-timeout SECONDS   give up if fewer than MIN nodes have joined by then
                           [600]
  --last-call SECONDS      once MIN nodes have joined, wait for more [30]
  --node-timeout SECONDS   a node that is silent this long counts as lost [10]

Where the workers run
  --gpus 0,2-3|UUID,...    the GPUs of this node's workers, in this order [all
                           that are visible]
  --virtual-local-rank     each worker sees only its own GPU, and has
                           LOCAL_RANK 0
  --numa-binding KIND      bind each worker to the CPUs of a node, socket or
                           core-complex, or to exclusive ones, near its GPU if
                           it has one

Output
  --prefix                 begin lines with role and local rank, as in
                           [default0]: [if several share a terminal]
  --no-prefix              leave lines as they are
  --log-line-prefix-template TEXT
                           a prefix such as '${hostname}:${rank}: '
  --timestamp              begin lines with the time
  --log-dir DIR            log files: DIR/JOB/attempt_N/RANK/... [ddprun_logs,
                           if files are requested]
  -r, --redirects 0|1|2|3|RANK:N,...
                           write 1 stdout, 2 stderr or 3 both to log files, not
                           to the console
  -t, --tee 0|1|2|3|RANK:N,...
                           show these streams with a prefix, and write them to
                           log files if --log-dir is given
  --local-ranks-filter RANK,...
                           show only the output of these workers
  --duplicate-stdout-filters TEXT,...
                           copy lines of stdout that contain a TEXT to
                           filtered_stdout.log
  --duplicate-stderr-filters TEXT,...
                           the same for stderr
  --log-max-size BYTES[K|M|G]
                           at this size rename a log file to FILE.1 and start a
                           new one

Failures, timeouts and signals
  --max-restarts N         restart the workers after a failure, at most N times
                           [0]
  --max-stalled-restarts K
                           end the job when K restarts in a row have reached no
                           new step (ddprun.status)
  --restart-backoff SECONDS
                           wait before the first restart, twice as long before
                           each further one [0]
  --restart-window SECONDS
                           an attempt that runs this long resets the restart
                           count
  --restart-on-codes CODE,...
                           restart only after these exit codes or signals, such
                           as 1,3-5,SIGKILL [any failure]
  --recover all|rank       rank: start only the failed worker again, while the
                           others go on [all]
  --standby N              keep N loaded processes on each node, to take the
                           places of lost workers [0]
  --timeout SECONDS        end the job after this time, restarts included
  --hang-timeout SECONDS   workers that show neither output nor a heartbeat for
                           this long count as failed
  --shutdown-timeout SECONDS
                           time from SIGTERM to SIGKILL [30]
  --signal-group           send SIGTERM to all of a worker's processes at once
  --signals-to-handle SIGNAL,...
                           signals that end the job
                           [SIGTERM,SIGINT,SIGHUP,SIGQUIT]
  --forward-signals SIGNAL,...
                           signals that are only passed on to the workers
                           [SIGUSR1,SIGUSR2]
  --result-json FILE       write how the job ended
  --events-json FILE       write each event as it happens
  --metrics-port PORT|ADDR:PORT
                           serve /metrics, /report, /status, /healthz [on
                           loopback]

Others
  --config FILE            read flags from a TOML file, such as
                           nproc-per-node = 2
  --dry-run                show what would start, and exit
  --show-ranks             show each rank's host, process, addresses and GPUs
                           as it starts
  -h, --help               show this help
  --version                show the version
  --print-completion bash|zsh
                           show the shell's completion script

Each flag can be written with underscores, as --flag VALUE or --flag=VALUE; if
repeated, the last one wins. Flags can also be set as DDPRUN_<FLAG>; torchrun's
PET_<FLAG> work too. Also accepted: --standalone, --rdzv-conf, --rdzv-backend
c10d|static|etcd; ignored: --monitor-interval, --start-method, --run-path,
--event-log-handler, --logs-specs.

When a worker fails, ddprun stops the others and exits with its code, or 128 +
its signal. Ctrl-C and SIGTERM end the job; a second one ends it at once. Exit
codes: 2 usage error, 124 timeout or hang, 125 ddprun's own failure, 126
PROGRAM is not executable, 127 PROGRAM not found.
)";

}  // namespace

std::string help_text() { return kHelp; }

}  // namespace ddprun::launcher
