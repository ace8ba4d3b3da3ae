#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/common/nvml_library.h>
#include <ddprun/group/process_group.h>
#include <ddprun/report/metric_sink.h>

namespace ddprun::train {

/// What a process uses: the numbers of a sample, NaN where one is not known, and their names.
///
///   cpu_percent       of one core, since the previous sample: 200 is two busy cores
///   rss_mb            resident memory now, in MiB
///   peak_rss_mb       the same since the program started
///   gpu_percent       time with a kernel running, in the driver's last sampling period
///   gpu_memory_mb     in use on the whole GPU, by all processes
///   gpu_allocated_mb  by tensors; these three are of LibTorch's allocator, and ResourceUsage omits them
///   gpu_reserved_mb   kept for tensors
///   gpu_peak_mb       the most that tensors had
enum ResourceFigure { kCpu, kRss, kPeakRss, kGpu, kGpuMemory, kGpuAllocated, kGpuReserved, kGpuPeak };
using ResourceSample = std::array<double, 8>;

/// Measures this process, and its GPU through NVIDIA's management library if available.
class ResourceUsage {
 public:
  /// gpu_uuid  "GPU-8f3c...", or its hexadecimal digits as the CUDA driver writes them; empty: no GPU
  explicit ResourceUsage(const std::string& gpu_uuid = "");

  /// Takes microseconds; with a GPU, less than a millisecond.
  ResourceSample sample();

 private:
  struct Percents {  // nvmlUtilization_t
    unsigned gpu, memory;
  };
  std::optional<NvmlLibrary> library_;
  NvmlLibrary::Device device_ = nullptr;
  int (*utilisation_)(NvmlLibrary::Device, Percents*) = nullptr;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  double last_cpu_seconds_;
};

/// Since this process started, or since it became a worker if it stood by before.
double process_seconds();

/// All ranks' samples as one row of what is known: under the names above for one rank; with the suffix
/// "_rank<r>" for up to 16 ranks; for more, only the lowest and the highest, with "_min" and "_max".
report::MetricRow resource_row(const std::vector<ResourceSample>& of_ranks);
/// All names that such a row can have.
std::vector<std::string> resource_columns(int ranks, bool gpu);

/// The resources that every rank uses. Samples travel with sums over ranks that are needed anyway.
class RankResources {
 public:
  /// gpu_uuid  this rank's GPU; empty: none
  RankResources(const ddp::ProcessGroup& group, const std::string& gpu_uuid)
      : group_(group), usage_(gpu_uuid) {}

  /// ddp::all_reduce_sum() of the values, which also exchanges the ranks' samples. Takes a new sample if the
  /// last one is a second old or at_once is set.
  std::vector<double> sum(std::vector<double> values, bool at_once = false);

  /// The ranks' samples as of the last sum(); empty if this rank's is not new, or the row was taken already.
  report::MetricRow take_row() { return std::exchange(row_, {}); }

 private:
  const ddp::ProcessGroup& group_;
  ResourceUsage usage_;
  std::optional<ResourceSample> sample_;
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
