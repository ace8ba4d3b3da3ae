#pragma once

#include <string>
#include <vector>

#include "launcher/cli/options.h"
#include "launcher/host/cpu_list.h"
#include "launcher/host/topology.h"

namespace ddprun::launcher {

/// Where the workers of this node run, by local rank.
struct Placement {
  std::vector<CpuList> cpus;              ///< to bind to; empty: not bound
  std::vector<std::string> visible_gpus;  ///< CUDA_VISIBLE_DEVICES of each; empty: all see the same
};

/// True if the options cannot be carried out without a look at the GPUs.
bool needs_gpus(const Options& options);

/// --numa-binding and --virtual-local-rank. Loads hwloc if it is needed. throws UsageError
Placement place_workers(const Options& options, const Topology& topology, int workers);

/// What --display map shows.
std::string placement_map(const Topology& topology, const Placement& placement, int first_rank, int workers);

}  // namespace ddprun::launcher
