#pragma once

#include <string>
#include <vector>

#include "launcher/host/cpu_list.h"
#include "launcher/host/cpu_map.h"

namespace ddprun::launcher {

/// --numa-binding, with torchrun's names.
enum class NumaBinding { kNode, kSocket, kExclusive, kCoreComplex };

/// throws UsageError
NumaBinding parse_numa_binding(const std::string& text);

/// The CPUs of each worker, by local rank.
///
/// With a GPU for every worker (worker i has GPU i) they are near it, as torchrun places them:
///   node           all of the GPU's NUMA node
///   socket         all of the package that this node is part of
///   exclusive      the node's physical cores, divided among its GPUs; what remains goes to the lowest ones
///   core-complex   one group of the node that shares a cache: the largest first, and in turn
/// Without, worker i of N is on unit i * U / N of the U nodes, packages or caches; exclusive divides all
/// cores.
///
/// gpu_nodes    NUMA node of each visible GPU; -1 (not known) counts as 0, as in torchrun
/// workers      1 or more
/// throws       UsageError if that leaves a worker without a CPU of its own, or on a node where none is
/// allowed
std::vector<CpuList> bind_workers(const CpuMap& map, const std::vector<int>& gpu_nodes, NumaBinding mode,
                                  int workers);

}  // namespace ddprun::launcher
