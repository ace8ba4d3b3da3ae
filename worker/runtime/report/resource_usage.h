#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/report/metric_sink.h>

namespace ddprun::report {

struct ResourceSample {
  double cpu_percent = 0;  ///< of one core, since the previous sample: 200 is two busy cores
  double rss_mb = 0;       ///< resident memory now, in MiB
  double peak_rss_mb = 0;  ///< since the program started
  std::optional<double> gpu_percent =
      {};  ///< time with a kernel running, in the driver's last sampling period
  std::optional<double> gpu_memory_mb = {};  ///< in use on the whole GPU, by all processes
  // Of LibTorch's allocator in this process; not measured here.
  std::optional<double> gpu_allocated_mb = {};  ///< by tensors
  std::optional<double> gpu_reserved_mb = {};   ///< kept for tensors
  std::optional<double> gpu_peak_mb = {};       ///< the most that tensors had
};

/// Measures this process, and its GPU through NVIDIA's management library if available.
class ResourceUsage {
 public:
  /// gpu_uuid  "GPU-8f3c...", or its hexadecimal digits as the CUDA driver writes them; empty: no GPU
  explicit ResourceUsage(const std::string& gpu_uuid = "");
  ~ResourceUsage();
  ResourceUsage(const ResourceUsage&) = delete;
  ResourceUsage& operator=(const ResourceUsage&) = delete;

  /// Takes microseconds; with a GPU, less than a millisecond.
  ResourceSample sample();

 private:
  class Gpu;
  std::unique_ptr<Gpu> gpu_;
  std::chrono::steady_clock::time_point last_;
  double last_cpu_seconds_ = 0;
};

/// Since this process started, or since it became a worker if it stood by before.
double process_seconds();

/// Converts a sample to numbers, to send it to another rank, and back; NaN: not known.
constexpr std::size_t kResourceNumbers = 8;
std::vector<double> numbers_of(const ResourceSample& sample);
/// throws  std::invalid_argument unless there are kResourceNumbers
ResourceSample sample_of(const std::vector<double>& numbers);

/// All ranks' samples as one row: cpu_percent, rss_mb, peak_rss_mb, gpu_percent, gpu_memory_mb,
/// gpu_allocated_mb, gpu_reserved_mb, gpu_peak_mb for one rank; with the suffix "_rank<r>" for up to 16
/// ranks; for more, only the lowest and the highest, with "_min" and "_max".
MetricRow resource_row(const std::vector<ResourceSample>& of_ranks);
/// All names that such a row can have.
std::vector<std::string> resource_columns(int ranks, bool gpu);

}  // namespace ddprun::report
