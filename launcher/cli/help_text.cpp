#include "launcher/cli/options.h"

namespace ddprun::launcher {

std::string help_text() {
  return R"(ddprun: starts N copies of a program with torchrun's environment, and supervises them together.

usage: ddprun [flags] [--] PROGRAM [arguments]      (all after PROGRAM is the program's, byte for byte)
  ddprun --nproc-per-node=2 train.py --lr 0.1         a .py file is run by python3 (or $PYTHON_EXEC)
  ddprun --nproc-per-node=2 -m my.module              so is a module
  ddprun --nproc-per-node=2 ./worker mnist            anything else is run as it is

Workers
  --nproc-per-node N|cpu|gpu|auto  a number, one a CPU, one a GPU, or GPUs if any else CPUs [1]
  -m, --module                     PROGRAM is the name of a Python module
  --no-python                      run PROGRAM as it is, also if its name ends in .py
  --expand                         replace ${local_rank} in the arguments, as torchrun does
  --role NAME                      ROLE_NAME of the workers [default]
  --master-port PORT               MASTER_PORT of the workers [a free one, held for the job]
  --rdzv-id ID                     TORCHELASTIC_RUN_ID of the workers [random; several nodes: none]

Several nodes: the same command on each, and under srun no flag at all
  --nnodes N|MIN:MAX               how many; MIN:MAX starts with MIN, and takes in more as they come [1]
  --rdzv-endpoint HOST[:PORT]      where they meet: one of them [port 29400]
  --node-rank N, --master-addr HOST, --master-port PORT   or so: node 0 is HOST, which they meet at [29500]
  --local-addr HOST                where others reach this node [as it reaches the endpoint]
  --token-file FILE                a secret of the nodes (or in DDPRUN_TOKEN): without it strangers may join
  --join-timeout, --last-call, --node-timeout SECONDS   for MIN nodes; then for more; of silence [600, 30, 10]

Where they run
  --numa-binding node|socket|exclusive|core-complex   bind workers to CPUs, near their GPUs if any
  --virtual-local-rank             each worker sees one GPU, and LOCAL_RANK 0
  --display map                    show rank, GPU and CPUs of every worker

Output
  --prefix, --no-prefix            begin lines with [ROLE RANK]: [on a terminal, or --tee]; --timestamp: and time
  --log-dir DIR                    where files go: DIR/JOB/attempt_N/RANK/{stdout,stderr}.log [ddprun_logs]
  -r, --redirects 0|1|2|3|RANK:N,..  to files instead: 1 stdout, 2 stderr, 3 both
  -t, --tee 0|1|2|3|RANK:N,..      to files as well, if --log-dir is given, with a prefix
  --local-ranks-filter RANK,..     show only these workers' output
  --duplicate-stdout-filters, --duplicate-stderr-filters TEXT,..   lines with a text go to filtered_*.log, too
  --log-max-size BYTES[K|M|G]      begin a file anew at this size, keeping the last one as FILE.1

When something ends
  --max-restarts N                 start all workers again after a failure, so often at most [0]
  --restart-backoff SECONDS        wait before the first restart; twice as long before each further one [0]
  --restart-window SECONDS         an attempt that lasted so long renews the budget of restarts
  --restart-on-codes CODE,..       only after these: 1, 3-5, SIGKILL [any failure]
  --timeout, --hang-timeout SECONDS  end the job after this time; ... without output or heartbeat
  --shutdown-timeout SECONDS       from SIGTERM to SIGKILL when the job ends early [30]
  --signals-to-handle SIGNAL,..    these end the job [SIGTERM,SIGINT,SIGHUP,SIGQUIT]
  --forward-signals SIGNAL,..      these are passed on and end nothing [SIGUSR1,SIGUSR2]
  --result-json, --events-json FILE  how the job ended; what happened and when, a line an event

  --config FILE                    flags from a TOML file: nproc-per-node = 2
  --dry-run                        show what would be started, and start nothing
  --version, --help

Every flag also with underscores, as --flag VALUE or --flag=VALUE; the last one counts. DDPRUN_<FLAG> variables
give flags, and PET_<FLAG> those of torchrun. Accepted from it: --standalone, --rdzv-backend c10d|static,
--rdzv-conf; without effect: --monitor-interval, --start-method, --run-path, --event-log-handler, --logs-specs

The first worker that fails ends the others, and ddprun exits with its code, or 128 + its signal. Ctrl-C and
SIGTERM end the job; a second one at once.
exit codes: 2 wrong usage, 124 timeout or hang, 125 ddprun's own failure, 126 PROGRAM not executable, 127 missing
)";
}

}  // namespace ddprun::launcher
