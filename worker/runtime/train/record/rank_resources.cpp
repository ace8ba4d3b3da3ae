#include <ddprun/train/record/rank_resources.h>

#include <algorithm>

#include <c10/core/CachingDeviceAllocator.h>

#include <ddprun/common/text.h>
#include <ddprun/group/collectives.h>

namespace ddprun::train {

RankResources::RankResources(const ddp::ProcessGroup& group, const std::string& gpu_uuid)
    : group_(group), usage_(gpu_uuid) {}

std::vector<double> RankResources::sum(std::vector<double> values, bool at_once) {
  const auto now = std::chrono::steady_clock::now();
  const bool fresh = at_once || sample_.empty() || now - sampled_ >= std::chrono::seconds(1);
  if (fresh) {
    auto sample = usage_.sample();
    if (const auto memory = gpu_memory(group_.device())) {
      sample.gpu_allocated_mb = memory->allocated;
      sample.gpu_reserved_mb = memory->reserved;
      sample.gpu_peak_mb = memory->peak_allocated;
    }
    sample_ = report::numbers_of(sample);
    sampled_ = now;
  }
  // Every rank fills only its own slots, so the sum contains everyone's numbers.
  constexpr auto kNumbers = static_cast<std::ptrdiff_t>(report::kResourceNumbers);
  const auto count = static_cast<std::ptrdiff_t>(values.size());
  values.resize(static_cast<std::size_t>(count + group_.size() * kNumbers), 0);
  std::ranges::copy(sample_, values.begin() + count + group_.rank() * kNumbers);
  values = ddp::all_reduce_sum(group_, std::move(values));

  std::vector<report::ResourceSample> samples;
  for (auto next = values.begin() + count; next != values.end(); next += kNumbers)
    samples.push_back(report::sample_of({next, next + kNumbers}));
  row_ = fresh ? report::resource_row(samples) : report::MetricRow();
  values.resize(static_cast<std::size_t>(count));
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
  peak.rss_mb = ddp::all_reduce_max(group, {report::ResourceUsage().sample().peak_rss_mb})[0];
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
