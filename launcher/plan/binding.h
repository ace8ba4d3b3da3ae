#pragma once

#include <vector>

#include "launcher/cli/options.h"
#include "launcher/host/cpu_list.h"
#include "launcher/host/cpu_map.h"

namespace ddprun::launcher {

/// The CPUs of each worker, by local rank.
///
/// With a GPU for every worker (worker i has GPU i), near that GPU, as torchrun does:
///   node           all of the GPU's NUMA node
///   socket         all of the package that contains the node
///   exclusive      the node's physical cores, divided among its GPUs; the lowest GPUs get the remainder
///   core-complex   a group of the node's cores that share a cache: the largest first, in turn
/// Otherwise worker i of N gets unit i * U / N of U nodes, packages or caches; exclusive divides all cores.
///
/// gpu_nodes    NUMA node of each visible GPU; -1 (unknown) counts as 0, as in torchrun
/// workers      1 or more
/// throws       UsageError if a worker would get no CPU
std::vector<CpuList> bind_workers(const CpuMap& map, const std::vector<int>& gpu_nodes, NumaBinding mode,
                                  int workers);

}  // namespace ddprun::launcher
