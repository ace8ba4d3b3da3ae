#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/group/process_group.h>
#include <ddprun/report/resource_usage.h>

namespace ddprun::train {

/// The resources that every rank uses. Samples travel with sums over ranks that are needed anyway.
class RankResources {
 public:
  /// gpu_uuid  this rank's GPU; empty: none
  RankResources(const ddp::ProcessGroup& group, const std::string& gpu_uuid);

  /// ddp::all_reduce_sum() of the values, which also exchanges the ranks' samples. Takes a new sample if the
  /// last one is a second old or at_once is set.
  std::vector<double> sum(std::vector<double> values, bool at_once = false);

  /// The ranks' samples as of the last sum(); empty if this rank's is not new, or the row was taken already.
  report::MetricRow take_row() { return std::exchange(row_, {}); }

 private:
  const ddp::ProcessGroup& group_;
  report::ResourceUsage usage_;
  std::vector<double> sample_;  // the last, as numbers
  std::chrono::steady_clock::time_point sampled_;
  report::MetricRow row_;
};

/// Memory of a rank's GPU, in LibTorch's allocator, in MiB.
struct GpuMemory {
  double allocated = 0;  ///< by tensors, now
  double reserved = 0;   ///< kept for tensors, now
  double peak_allocated = 0, peak_reserved = 0;
};
/// This rank's; nullopt on a CPU
std::optional<GpuMemory> gpu_memory(at::Device device);

/// "GPU memory of rank 0: 1.25 GB allocated, 2.00 GB reserved, 1.80 GB allocated at its peak", GB of 2^30
/// bytes
std::string describe(const GpuMemory& memory, int rank);

/// The job's memory.
struct PeakMemory {
  double rss_mb = 0;            ///< the largest peak of any rank, in MiB
  std::vector<GpuMemory> gpus;  ///< by rank; empty on CPUs
};
/// Every rank calls it.
PeakMemory peak_memory(const ddp::ProcessGroup& group);

}  // namespace ddprun::train
