#include <ddprun/ddp/bucket_limits.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace ddprun::ddp {
namespace {

constexpr std::int64_t kDefaultFirstBucketBytes = 1 << 20;

void check(const DistributedDataParallel::Options& options) {
  const auto check_positive = [](std::int64_t bytes) {
    if (bytes <= 0)
      throw std::invalid_argument("DistributedDataParallel: expected buckets of at least 1 byte, got " +
                                  std::to_string(bytes));
  };
  check_positive(options.bucket_bytes);
  check_positive(options.first_bucket_bytes.value_or(1));
  for (const auto bytes : options.bucket_bytes_list) check_positive(bytes);
}

}  // namespace

BucketLimits bucket_limits(const DistributedDataParallel::Options& options) {
  check(options);
  const auto& list = options.bucket_bytes_list;
  BucketLimits limits{};
  limits.cap = list.empty() ? options.bucket_bytes : *std::max_element(list.begin(), list.end());
  const bool is_default = list.empty() && limits.cap == DistributedDataParallel::Options{}.bucket_bytes;
  limits.first = is_default ? kDefaultFirstBucketBytes : limits.cap;
  if (list.empty()) limits.first = options.first_bucket_bytes.value_or(limits.first);
  if (!list.empty())
    limits.initial.assign(list.begin(), list.end());
  else if (options.static_graph || !options.find_unused_parameters)
    limits.initial = {std::numeric_limits<std::size_t>::max() >> 1};
  else
    limits.initial = {static_cast<std::size_t>(limits.first), static_cast<std::size_t>(limits.cap)};
  return limits;
}

}  // namespace ddprun::ddp
