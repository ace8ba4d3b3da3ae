#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/options.h"
#include "launcher/rendezvous/round.h"
#include "launcher/topology.h"

namespace ddprun {

/// One worker, ready to be started.
struct WorkerSpec {
  int rank = 0;
  int local_rank = 0;
  std::vector<std::string> argv;
  std::vector<std::string> env;      ///< "NAME=value", the whole environment
  std::filesystem::path error_file;  ///< also in env
  bool reads_stdin = false;          ///< gets ddprun's stdin; else /dev/null
  std::optional<int> store_fd;       ///< the one descriptor above 2 that it inherits; also in env
};

/// What all workers of a node have in common.
struct LaunchContext {
  std::vector<std::string> program;      ///< argv of every worker
  std::vector<std::string> environment;  ///< ddprun's own, "NAME=value"
  std::filesystem::path error_folder;    ///< absolute; each worker gets a file in it
  int store_fd = -1;                     ///< bound socket of the master port, for local rank 0 of node 0
};

/// How many workers to start. throws UsageError if one a GPU is asked for and there is none
int worker_count(const WorkersWanted& wanted, const Topology& topology);

/// The workers of this node by local rank.
///
/// Their environment is ddprun's own without what another launcher left in it, then torchrun's variables,
/// then, unless set already: TORCH_NCCL_ASYNC_ERROR_HANDLING=1, and for several workers OMP_NUM_THREADS, the
/// share of each in the CPUs (torchrun: 1, which leaves CPUs idle).
std::vector<WorkerSpec> plan_workers(const LaunchContext& context, const Round& round,
                                     const Topology& topology);

}  // namespace ddprun
