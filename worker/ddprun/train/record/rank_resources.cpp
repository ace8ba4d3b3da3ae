#include <ddprun/train/record/rank_resources.h>

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <ctime>
#include <fstream>
#include <limits>
#include <sstream>

#include <c10/core/CachingDeviceAllocator.h>

#include <ddprun/common/recovery.h>
#include <ddprun/common/text.h>
#include <ddprun/group/collectives.h>

namespace ddprun::train {
namespace {

constexpr std::array kFigures = {"cpu_percent",   "rss_mb",           "peak_rss_mb",     "gpu_percent",
                                 "gpu_memory_mb", "gpu_allocated_mb", "gpu_reserved_mb", "gpu_peak_mb"};

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
    if (name == "VmHWM:" && status >> kib) sample[kPeakRss] = kib / 1024;
    if (name == "VmRSS:" && status >> kib) {
      sample[kRss] = kib / 1024;
      return;  // it follows the peak
    }
    status.ignore(1 << 20, '\n');
  }
}

/// The hexadecimal digits of a UUID, which the driver and its management library format differently.
std::string digits_of(const std::string& uuid) {
  auto digits = lower_case(uuid.substr(uuid.starts_with("GPU-") ? 4 : 0));
  std::erase_if(digits, [](unsigned char c) { return std::isxdigit(c) == 0; });
  return digits;
}

constexpr int kMostRanksByName = 16;

std::vector<std::string> names_of(const std::string& figure, int ranks) {
  if (ranks <= 1) return {figure};
  if (ranks > kMostRanksByName) return {figure + "_min", figure + "_max"};
  std::vector<std::string> names;
  for (int rank = 0; rank < ranks; ++rank) names.push_back(figure + formatted("_rank%d", rank));
  return names;
}

}  // namespace

ResourceUsage::ResourceUsage(const std::string& gpu_uuid) : last_cpu_seconds_(cpu_seconds()) {
  if (gpu_uuid.empty()) return;
  library_.emplace();
  library_->load(utilisation_, "nvmlDeviceGetUtilizationRates");
  for (unsigned i = 0; i < library_->count() && device_ == nullptr; ++i)
    if (const auto device = library_->device(i);
        device != nullptr && digits_of(library_->uuid(device)) == digits_of(gpu_uuid))
      device_ = device;
}

ResourceSample ResourceUsage::sample() {
  const auto now = std::chrono::steady_clock::now();
  const double cpu = cpu_seconds(), elapsed = std::chrono::duration<double>(now - last_).count();
  ResourceSample sample;
  sample.fill(std::numeric_limits<double>::quiet_NaN());
  sample[kCpu] = elapsed > 0 ? 100 * (cpu - last_cpu_seconds_) / elapsed : 0;
  sample[kRss] = sample[kPeakRss] = 0;
  last_ = now;
  last_cpu_seconds_ = cpu;
  read_memory(sample);
  if (device_ == nullptr) return sample;
  if (Percents percents{}; utilisation_ && utilisation_(device_, &percents) == NvmlLibrary::kSuccess)
    sample[kGpu] = percents.gpu;
  if (const auto memory = library_->memory(device_))
    sample[kGpuMemory] = static_cast<double>(memory->used_bytes) / (1 << 20);
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

report::MetricRow resource_row(const std::vector<ResourceSample>& of_ranks) {
  const int ranks = static_cast<int>(of_ranks.size());
  report::MetricRow row;
  for (std::size_t figure = 0; figure < kFigures.size(); ++figure) {
    std::vector<double> values;
    for (const auto& sample : of_ranks) values.push_back(sample[figure]);
    if (ranks > kMostRanksByName) {
      std::erase_if(values, [](double value) { return std::isnan(value); });
      if (values.empty()) continue;
      const auto [lowest, highest] = std::ranges::minmax(values);
      values = {lowest, highest};
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

std::vector<double> RankResources::sum(std::vector<double> values, bool at_once) {
  const auto now = std::chrono::steady_clock::now();
  const bool fresh = at_once || !sample_ || now - sampled_ >= std::chrono::seconds(1);
  if (fresh) {
    sample_ = usage_.sample();
    if (const auto memory = gpu_memory(group_.device())) {
      (*sample_)[kGpuAllocated] = memory->allocated;
      (*sample_)[kGpuReserved] = memory->reserved;
      (*sample_)[kGpuPeak] = memory->peak_allocated;
    }
    sampled_ = now;
  }
  // Every rank fills only its own slots, so the sum contains everyone's numbers.
  const auto count = values.size();
  std::vector<ResourceSample> samples(static_cast<std::size_t>(group_.size()));
  values.resize(count + samples.size() * kFigures.size(), 0);
  const auto first = values.begin() + static_cast<std::ptrdiff_t>(count);
  std::ranges::copy(*sample_, first + group_.rank() * static_cast<std::ptrdiff_t>(kFigures.size()));
  values = ddp::all_reduce_sum(group_, std::move(values));

  auto next = values.begin() + static_cast<std::ptrdiff_t>(count);
  for (auto& sample : samples)
    for (auto& number : sample) number = *next++;
  row_ = fresh ? resource_row(samples) : report::MetricRow();
  values.resize(count);
  return values;
}

std::optional<GpuMemory> gpu_memory(at::Device device) {
  if (!device.is_cuda()) return std::nullopt;
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto mb = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  const auto& allocated = stats.allocated_bytes[kAll];
  const auto& reserved = stats.reserved_bytes[kAll];
  return GpuMemory{mb(allocated.current), mb(reserved.current), mb(allocated.peak), mb(reserved.peak)};
}

std::string describe(const GpuMemory& memory, int rank) {
  return formatted(
      "GPU memory of rank %d: %.2f GB allocated, %.2f GB reserved, %.2f GB allocated at its peak", rank,
      memory.allocated / 1024, memory.reserved / 1024, memory.peak_allocated / 1024);
}

PeakMemory peak_memory(const ddp::ProcessGroup& group) {
  const auto own = gpu_memory(group.device());
  PeakMemory peak;
  peak.rss_mb = ddp::all_reduce_max(group, {ResourceUsage().sample()[kPeakRss]})[0];
  if (!own) return peak;  // no rank has a GPU
  const std::vector<double> figures = {own->allocated, own->reserved, own->peak_allocated,
                                       own->peak_reserved};
  std::vector<double> all(4 * static_cast<std::size_t>(group.size()), 0);
  std::ranges::copy(figures, all.begin() + 4 * group.rank());
  all = ddp::all_reduce_sum(group, std::move(all));
  for (std::size_t i = 0; i < all.size(); i += 4)
    peak.gpus.push_back({all[i], all[i + 1], all[i + 2], all[i + 3]});
  return peak;
}

}  // namespace ddprun::train
