#pragma once

#include <string>
#include <vector>

#include "launcher/cli/options.h"
#include "launcher/host/cpu_list.h"
#include "launcher/host/cpu_map.h"
#include "launcher/host/topology.h"
#include "launcher/rendezvous/round.h"

namespace ddprun::launcher {

/// Where the workers of this node run, by local rank.
struct Placement {
  std::vector<CpuList> cpus;              ///< to bind to; empty: unbound
  std::vector<std::string> visible_gpus;  ///< CUDA_VISIBLE_DEVICES of each; empty: the same for all
};

/// True if the options depend on the GPUs.
bool needs_gpus(const Options& options);

/// Applies --numa-binding, which loads hwloc, and --virtual-local-rank. throws UsageError
Placement place_workers(const Options& options, const Topology& topology, int workers);

/// Where one worker runs.
struct PlacedWorker {
  int rank = 0;
  int local_rank = 0;
  std::string gpu;  ///< as shown; empty: none
  CpuList cpus;     ///< all that it may use, bound or not
};

/// The table of --dry-run: a heading and a line for each rank, at most 100 columns wide. A list of CPUs that
/// is too long ends in "... (N CPUs)".
///
/// nodes    the host's; empty if they are not known
std::string cpu_table(const std::vector<PlacedWorker>& workers, const std::vector<NumaNode>& nodes);

/// The same for the workers of a round on this node.
std::string cpu_table(const Topology& topology, const Placement& placement, const Round& round);

}  // namespace ddprun::launcher
