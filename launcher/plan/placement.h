#pragma once

#include <string>
#include <vector>

#include "launcher/cli/options.h"
#include "launcher/host/cpus.h"
#include "launcher/host/topology.h"
#include "launcher/rendezvous/message.h"

namespace ddprun::launcher {

/// The CPUs of each worker, by local rank.
///
/// With a GPU for every worker (worker i has GPU i), near that GPU, as in torchrun:
///   node           all of the GPU's NUMA node
///   socket         all of the package that contains the node
///   exclusive      the node's physical cores, divided among its GPUs; the lowest GPUs get the remainder
///   core-complex   a group of the node's cores that share a cache: the largest first, in turn
/// Otherwise worker i of N gets number i * U / N of U nodes, packages or caches; exclusive divides all cores.
///
/// gpu_nodes    NUMA node of each visible GPU; -1 (unknown) counts as 0, as in torchrun
/// workers      1 or more
/// throws       UsageError if a worker would get no CPU
std::vector<CpuList> bind_workers(const CpuMap& map, const std::vector<int>& gpu_nodes, NumaBinding mode,
                                  int workers);

/// Where the workers of this node run, by local rank.
struct Placement {
  std::vector<CpuList> cpus;              ///< to bind to; empty: unbound
  std::vector<std::string> visible_gpus;  ///< values for Topology::gpu_variable; empty: the same for all
};

/// Which GPUs the options depend on.
WantedGpus wanted_gpus(const Options& options);

/// Leaves only the GPUs of --gpus visible. throws UsageError
void choose_gpus(const Options& options, Topology& topology);

/// Applies --numa-binding, which loads hwloc, and --virtual-local-rank. throws UsageError
Placement place_workers(const Options& options, const Topology& topology, int workers);

/// Where one worker runs.
struct PlacedWorker {
  int rank = 0;
  int local_rank = 0;
  std::string gpu;  ///< as displayed; empty: none
  CpuList cpus;     ///< all that it may use, bound or not
};

/// The table of --dry-run: a heading and a line for each rank, at most 100 columns wide. A list of too many
/// CPUs ends in "... (N CPUs)".
///
/// nodes    the host's; empty if unknown
std::string cpu_table(const std::vector<PlacedWorker>& workers, const std::vector<NumaNode>& nodes);

/// The same for the workers of a round on this node.
std::string cpu_table(const Topology& topology, const Placement& placement, const Round& round);

}  // namespace ddprun::launcher
