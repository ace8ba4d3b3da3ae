#pragma once

#include <vector>

#include "launcher/host/cpu_list.h"

namespace ddprun::launcher {

/// A NUMA node that has CPUs.
struct NumaNode {
  int index = 0;         ///< the kernel's
  CpuList cpus;          ///< those of it that are allowed; may be empty
  CpuList package_cpus;  ///< the allowed ones of the package (or packages) that it belongs to
};

/// How the CPUs that this process may use lie together. But for the nodes, what holds none of them is left
/// out.
struct CpuMap {
  std::vector<NumaNode> nodes;    ///< of the whole host
  std::vector<CpuList> packages;  ///< sockets
  std::vector<CpuList> caches;    ///< sharing the outermost cache, mostly L3
  std::vector<CpuList> cores;     ///< physical cores, neighbours beside each other
};

/// Asks hwloc, which is loaded only here: it takes longer than starting a job. Its own environment variables
/// (HWLOC_SYNTHETIC, HWLOC_XMLFILE) work. What hwloc does not know of, such as the caches of a virtual
/// machine, is replaced by the next that it knows.
///
/// allowed    the CPUs that count
/// library    the library's name, for tests
/// throws     UsageError if hwloc is not installed, or is another than we were built for
CpuMap read_cpu_map(const CpuList& allowed, const char* library = "libhwloc.so.15");

}  // namespace ddprun::launcher
