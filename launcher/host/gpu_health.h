#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/host/gpu_list.h"

namespace ddprun::launcher {

/// Memory of a GPU that may be held before a job starts: a display, a monitor, the driver's own rounding.
constexpr std::uint64_t kHeldMemoryTolerance = std::uint64_t{512} << 20;

/// What may make a job on these GPUs fail before it has done anything, one line each:
///
/// - a process that is none of ours holds more memory than tolerated, or memory is held and NVML names nobody
///   for it (a process of another container, or one that did not die);
/// - ECC errors that could not be corrected since the driver was loaded.
///
/// visible    the GPUs that the job will use, once each
/// ours       process ids of this job, such as workers of an attempt that just ended
std::vector<std::string> gpu_problems(const std::vector<Gpu>& host, const std::vector<VisibleGpu>& visible,
                                      const std::vector<int>& ours = {});

}  // namespace ddprun::launcher
