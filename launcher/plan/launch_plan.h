#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cli/options.h"
#include "launcher/host/topology.h"
#include "launcher/rendezvous/round.h"

namespace ddprun::launcher {

/// One worker, ready to be started.
struct WorkerSpec {
  int rank = 0;
  int local_rank = 0;
  std::vector<std::string> argv;
  std::vector<std::string> env;      ///< "NAME=value", the whole environment
  std::filesystem::path error_file;  ///< also in env
  bool traceable = false;            ///< its stacks may be asked for
  bool reads_stdin = false;          ///< gets ddprun's stdin; else /dev/null
  std::vector<int> inherited_fds;    ///< the descriptors above 2 that it keeps; a variable of env names each
  std::vector<int> cpus;             ///< to run on; empty: all of ddprun's
};

/// What a round's workers on a node are made from.
struct LaunchContext {
  std::vector<std::string> program;      ///< argv of every worker
  bool expand = false;                   ///< ${local_rank} in argv
  std::vector<std::string> environment;  ///< ddprun's own, "NAME=value"
  std::string role = "default";
  std::string job_id;            ///< see kJobIdVariable
  std::filesystem::path folder;  ///< absolute; the worker of index i gets i/error.json in it
  bool may_hang =
      false;  ///< a timeout is set: the workers are traceable, and Python prints its stacks on SIGABRT
  int store_fd = -1;  ///< bound socket of the master port, for local rank 0 of node 0

  // By local rank; empty if there are none.
  std::vector<int> heartbeat_fds;
  std::vector<std::vector<int>> cpus;
  std::vector<std::string>
      visible_gpus;  ///< --virtual-local-rank: CUDA_VISIBLE_DEVICES; LOCAL_RANK is 0 then
};

/// How many workers to start. throws UsageError if one a GPU is asked for and there is none
int worker_count(const WorkersWanted& wanted, const Topology& topology);

/// OMP_NUM_THREADS of each worker, if ddprun is to choose it: for several workers, and unless it is set.
std::optional<int> threads_per_worker(const std::vector<std::string>& environment, const Topology& topology,
                                      int workers);

/// The workers of this node by local rank.
///
/// Their environment is ddprun's own without what another launcher left in it, then torchrun's variables,
/// then, unless set already: TORCH_NCCL_ASYNC_ERROR_HANDLING=1, and for several workers OMP_NUM_THREADS, the
/// share of each in the CPUs (torchrun: 1, which leaves CPUs idle), and the job's id, after that of a job
/// around it.
std::vector<WorkerSpec> plan_workers(const LaunchContext& context, const Round& round,
                                     const Topology& topology);

}  // namespace ddprun::launcher
