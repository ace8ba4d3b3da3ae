#pragma once

#include <vector>

#include "launcher/host/cpu_list.h"

namespace ddprun::launcher {

/// A NUMA node that has CPUs.
struct NumaNode {
  int index = 0;         ///< the kernel's
  CpuList cpus;          ///< the allowed ones; may be empty
  CpuList package_cpus;  ///< the allowed ones of its package or packages
};

/// How the CPUs that this process may use are grouped. Only `nodes` includes groups without an allowed CPU.
struct CpuMap {
  std::vector<NumaNode> nodes;    ///< of the whole host
  std::vector<CpuList> packages;  ///< sockets
  std::vector<CpuList> caches;    ///< sharing the outermost cache, mostly L3
  std::vector<CpuList> cores;     ///< physical cores, in topology order
};

/// Asks hwloc, which is loaded only here because that takes longer than starting a job. Honours hwloc's
/// variables (HWLOC_SYNTHETIC, HWLOC_XMLFILE). A level that hwloc does not report, such as caches in a
/// virtual machine, falls back to the next larger one.
///
/// library    its name, for tests
/// throws     UsageError if hwloc is not installed or has another major version
CpuMap read_cpu_map(const CpuList& allowed, const char* library = "libhwloc.so.15");

}  // namespace ddprun::launcher
