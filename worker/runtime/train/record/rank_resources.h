#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/group/process_group.h>
#include <ddprun/report/resource_usage.h>

namespace ddprun::train {

/// What every rank uses of its machine. Ranks tell each other in passing, with sums that they make anyway.
class RankResources {
 public:
  /// gpu_uuid  of this rank's GPU; empty: none. The group must outlive it.
  RankResources(const ddp::ProcessGroup& group, const std::string& gpu_uuid);

  /// ddp::all_reduce_sum() of the values. This rank's sample goes with it: a new one if the last is a second
  /// old, or at once.
  std::vector<double> sum(std::vector<double> values, bool at_once = false);

  /// What ranks use as of the last sum(), for a row; empty if this rank's sample was not new, or was taken.
  report::MetricRow take_row() { return std::exchange(row_, {}); }

 private:
  const ddp::ProcessGroup& group_;
  report::ResourceUsage usage_;
  std::vector<double> sample_;  // the last, as numbers
  std::chrono::steady_clock::time_point sampled_;
  report::MetricRow row_;
};

/// The most memory that any rank has used so far, in MiB.
struct PeakMemory {
  double rss_mb = 0;
  double gpu_allocated_mb = 0;  ///< by tensors; 0 without a GPU
  double gpu_reserved_mb = 0;   ///< from the GPU, by LibTorch's allocator
};
/// Every rank calls it.
PeakMemory peak_memory(const ddp::ProcessGroup& group);

}  // namespace ddprun::train
