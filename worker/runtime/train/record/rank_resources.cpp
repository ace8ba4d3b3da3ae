#include <ddprun/train/record/rank_resources.h>

#include <algorithm>
#include <utility>

#include <c10/core/CachingDeviceAllocator.h>

#include <ddprun/group/collectives.h>

namespace ddprun::train {

RankResources::RankResources(const ddp::ProcessGroup& group, const std::string& gpu_uuid)
    : group_(group), usage_(gpu_uuid) {}

std::vector<double> RankResources::sum(std::vector<double> values, bool at_once) {
  const auto now = std::chrono::steady_clock::now();
  const bool fresh = at_once || sample_.empty() || now - sampled_ >= std::chrono::seconds(1);
  if (fresh) {
    sample_ = report::numbers_of(usage_.sample());
    sampled_ = now;
  }
  // Every rank fills only its own slots, so the sum holds the numbers of all.
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

PeakMemory peak_memory(const ddp::ProcessGroup& group) {
  std::vector<double> peaks = {report::ResourceUsage().sample().peak_rss_mb, 0, 0};
  if (const auto device = group.device(); device.is_cuda()) {
    const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    peaks[1] = static_cast<double>(stats.allocated_bytes[kAll].peak) / (1 << 20);
    peaks[2] = static_cast<double>(stats.reserved_bytes[kAll].peak) / (1 << 20);
  }
  peaks = ddp::all_reduce_max(group, peaks);
  return {peaks[0], peaks[1], peaks[2]};
}

}  // namespace ddprun::train
