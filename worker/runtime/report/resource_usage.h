#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/report/metric_sink.h>

namespace ddprun::report {

/// What a rank uses of its machine.
struct ResourceSample {
  double cpu_percent = 0;               ///< of one core, since the sample before: 200 is two cores busy
  double rss_mb = 0;                    ///< resident memory now, in MiB
  double peak_rss_mb = 0;               ///< the most since the program began
  std::optional<double> gpu_percent;    ///< time that a kernel ran, in the driver's last sampling period
  std::optional<double> gpu_memory_mb;  ///< in use on the whole GPU, whoever uses it
};

/// Measures this process, and the GPU it uses by NVIDIA's management library where there is one.
class ResourceUsage {
 public:
  /// gpu_uuid  "GPU-8f3c...", or its hexadecimal digits as the CUDA driver tells them; empty: no GPU
  explicit ResourceUsage(const std::string& gpu_uuid = "");
  ~ResourceUsage();
  ResourceUsage(const ResourceUsage&) = delete;
  ResourceUsage& operator=(const ResourceUsage&) = delete;

  /// Takes some microseconds; with a GPU, below a millisecond.
  ResourceSample sample();

 private:
  class Gpu;
  std::unique_ptr<Gpu> gpu_;
  std::chrono::steady_clock::time_point last_;
  double last_cpu_seconds_ = 0;
};

/// A sample as numbers to send to another rank, and back; NaN is what is not known.
constexpr std::size_t kResourceNumbers = 5;
std::vector<double> numbers_of(const ResourceSample& sample);
/// throws  std::invalid_argument for another count than kResourceNumbers
ResourceSample sample_of(const std::vector<double>& numbers);

/// The samples of all ranks as one row: cpu_percent, rss_mb, peak_rss_mb, gpu_percent, gpu_memory_mb for one
/// rank; with an "_rank<r>" behind each name for up to 16 ranks; for more the lowest and the highest of all,
/// "_min" and "_max".
MetricRow resource_row(const std::vector<ResourceSample>& of_ranks);
/// The names that such a row can have.
std::vector<std::string> resource_columns(int ranks, bool gpu);

}  // namespace ddprun::report
