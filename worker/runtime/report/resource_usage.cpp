#include <ddprun/report/resource_usage.h>

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>

#include <ddprun/common/nvml_library.h>
#include <ddprun/common/recovery.h>

namespace ddprun::report {
namespace {

constexpr int kMostRanksByName = 16;

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// From /proc, because getrusage's peak may be that of the process that started this one.
void read_memory(ResourceSample& sample) {
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name;) {
    double kib = 0;
    if (name == "VmHWM:" && status >> kib) sample.peak_rss_mb = kib / 1024;
    if (name == "VmRSS:" && status >> kib) {
      sample.rss_mb = kib / 1024;
      return;  // it follows the peak
    }
    status.ignore(1 << 20, '\n');
  }
}

/// The hexadecimal digits of a UUID, which the driver and its management library format differently.
std::string digits_of(const std::string& uuid) {
  std::string digits;
  for (const char c : uuid.substr(uuid.starts_with("GPU-") ? 4 : 0))
    if (std::isxdigit(static_cast<unsigned char>(c)))
      digits += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return digits;
}

/// In the order of numbers_of().
constexpr const char* kFigures[kResourceNumbers] = {"cpu_percent",     "rss_mb",        "peak_rss_mb",
                                                    "gpu_percent",     "gpu_memory_mb", "gpu_allocated_mb",
                                                    "gpu_reserved_mb", "gpu_peak_mb"};

std::vector<std::string> names_of(const std::string& figure, int ranks) {
  if (ranks <= 1) return {figure};
  if (ranks > kMostRanksByName) return {figure + "_min", figure + "_max"};
  std::vector<std::string> names;
  for (int rank = 0; rank < ranks; ++rank) names.push_back(figure + "_rank" + std::to_string(rank));
  return names;
}

}  // namespace

class ResourceUsage::Gpu {
 public:
  explicit Gpu(const std::string& uuid) {
    library_.load(utilisation_, "nvmlDeviceGetUtilizationRates");
    for (unsigned i = 0; i < library_.count() && device_ == nullptr; ++i)
      if (const auto device = library_.device(i);
          device != nullptr && digits_of(library_.uuid(device)) == digits_of(uuid))
        device_ = device;
  }

  void read(ResourceSample& sample) const {
    if (device_ == nullptr) return;
    Percents percents{};
    if (utilisation_ && utilisation_(device_, &percents) == NvmlLibrary::kSuccess)
      sample.gpu_percent = percents.gpu;
    if (const auto memory = library_.memory(device_))
      sample.gpu_memory_mb = static_cast<double>(memory->used_bytes) / (1 << 20);
  }

 private:
  struct Percents {  // nvmlUtilization_t
    unsigned gpu, memory;
  };

  NvmlLibrary library_;
  NvmlLibrary::Device device_ = nullptr;
  int (*utilisation_)(NvmlLibrary::Device, Percents*) = nullptr;
};

ResourceUsage::ResourceUsage(const std::string& gpu_uuid)
    : gpu_(gpu_uuid.empty() ? nullptr : std::make_unique<Gpu>(gpu_uuid)),
      last_(std::chrono::steady_clock::now()),
      last_cpu_seconds_(cpu_seconds()) {}

ResourceUsage::~ResourceUsage() = default;

ResourceSample ResourceUsage::sample() {
  const auto now = std::chrono::steady_clock::now();
  const double cpu = cpu_seconds();
  const double elapsed = std::chrono::duration<double>(now - last_).count();
  ResourceSample sample;
  if (elapsed > 0) sample.cpu_percent = 100 * (cpu - last_cpu_seconds_) / elapsed;
  last_ = now;
  last_cpu_seconds_ = cpu;
  read_memory(sample);
  if (gpu_) gpu_->read(sample);
  return sample;
}

double process_seconds() {
  if (const auto since = became_worker())
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - *since).count();
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text, '\0');
  std::istringstream fields(text.substr(text.rfind(')') + 1));  // a name may contain anything
  constexpr int kFieldsBefore = 19;
  std::string skipped;
  for (int i = 0; i < kFieldsBefore; ++i) fields >> skipped;
  double ticks = 0;  // since the machine started
  fields >> ticks;
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9 -
         ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

std::vector<double> numbers_of(const ResourceSample& sample) {
  constexpr double kNotKnown = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> numbers = {sample.cpu_percent, sample.rss_mb, sample.peak_rss_mb};
  for (const auto& figure : {sample.gpu_percent, sample.gpu_memory_mb, sample.gpu_allocated_mb,
                             sample.gpu_reserved_mb, sample.gpu_peak_mb})
    numbers.push_back(figure.value_or(kNotKnown));
  return numbers;
}

ResourceSample sample_of(const std::vector<double>& numbers) {
  if (numbers.size() != kResourceNumbers)
    throw std::invalid_argument("a sample is " + std::to_string(kResourceNumbers) + " numbers, got " +
                                std::to_string(numbers.size()));
  const auto if_known = [](double number) {
    return std::isnan(number) ? std::nullopt : std::optional(number);
  };
  return {numbers[0],           numbers[1],           numbers[2],           if_known(numbers[3]),
          if_known(numbers[4]), if_known(numbers[5]), if_known(numbers[6]), if_known(numbers[7])};
}

MetricRow resource_row(const std::vector<ResourceSample>& of_ranks) {
  const int ranks = static_cast<int>(of_ranks.size());
  MetricRow row;
  for (std::size_t figure = 0; figure < kResourceNumbers; ++figure) {
    std::vector<double> values;
    for (const auto& sample : of_ranks) values.push_back(numbers_of(sample)[figure]);
    if (ranks > kMostRanksByName) {
      std::erase_if(values, [](double value) { return std::isnan(value); });
      if (values.empty()) continue;
      const auto [lowest, highest] = std::minmax_element(values.begin(), values.end());
      values = {*lowest, *highest};
    }
    const auto names = names_of(kFigures[figure], ranks);
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!std::isnan(values[i])) row.emplace_back(names[i], values[i]);
  }
  return row;
}

std::vector<std::string> resource_columns(int ranks, bool gpu) {
  std::vector<std::string> columns;
  for (const std::string figure : kFigures)
    if (gpu || !figure.starts_with("gpu_"))
      for (auto& name : names_of(figure, ranks)) columns.push_back(std::move(name));
  return columns;
}

}  // namespace ddprun::report
