#include "launcher/host/gpu_health.h"

#include <algorithm>

namespace ddprun::launcher {
namespace {

std::string mebibytes(std::uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

void add_memory_problems(const Gpu& gpu, const std::vector<int>& ours, std::vector<std::string>& problems) {
  std::uint64_t named = 0;
  for (const GpuProcess& process : gpu.processes) {
    named += process.bytes;
    if (process.bytes <= kHeldMemoryTolerance) continue;
    if (std::find(ours.begin(), ours.end(), process.pid) != ours.end()) continue;
    problems.push_back(describe(gpu) + ": process " + std::to_string(process.pid) +
                       ", which is none of this job, holds " + mebibytes(process.bytes) + " of " +
                       mebibytes(gpu.memory_bytes));
  }
  if (gpu.used_bytes > named + kHeldMemoryTolerance)
    problems.push_back(describe(gpu) + ": " + mebibytes(gpu.used_bytes - named) + " of " +
                       mebibytes(gpu.memory_bytes) +
                       " are held by processes that are not to be seen from here (another container?)");
}

}  // namespace

std::vector<std::string> gpu_problems(const std::vector<Gpu>& host, const std::vector<VisibleGpu>& visible,
                                      const std::vector<int>& ours) {
  std::vector<std::string> problems;
  for (std::size_t i = 0; i < host.size(); ++i) {
    const auto used = [&](const VisibleGpu& gpu) { return gpu.gpu == static_cast<int>(i); };
    const auto entry = std::find_if(visible.begin(), visible.end(), used);
    if (entry == visible.end()) continue;
    const Gpu& gpu = host[i];
    // What is held of a GPU that is divided into instances may be the neighbours' by right.
    if (!entry->is_mig()) add_memory_problems(gpu, ours, problems);
    if (gpu.ecc_errors > 0)
      problems.push_back(describe(gpu) + ": uncorrected ECC errors since the driver was loaded: " +
                         std::to_string(gpu.ecc_errors));
  }
  return problems;
}

}  // namespace ddprun::launcher
