#pragma once

#include <string>
#include <vector>

#include "launcher/host/cpu_list.h"
#include "launcher/host/cpu_map.h"

namespace ddprun::launcher {

/// Where one worker runs.
struct PlacedWorker {
  int rank = 0;
  int local_rank = 0;
  std::string gpu;  ///< as it should be shown; empty if it has none
  CpuList cpus;     ///< all that it may use, bound or not
};

/// What --display map prints: a heading and a line a rank, none wider than 100 columns. A list of CPUs that
/// is too long ends in "... (N CPUs)".
///
/// nodes    the host's; empty if nobody knows them
std::string display_map(const std::vector<PlacedWorker>& workers, const std::vector<NumaNode>& nodes);

}  // namespace ddprun::launcher
