#include <ddprun/data/distributed_sampler.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include <ddprun/data/random.h>

namespace ddprun::data {

DistributedSampler::DistributedSampler(std::int64_t size, int num_replicas, int rank, const Options& options)
    : size_(size), num_replicas_(num_replicas), rank_(rank), options_(options) {
  if (rank < 0 || rank >= num_replicas || size < 1)
    throw std::invalid_argument("DistributedSampler: expected 0 <= rank < num_replicas and size >= 1");
}

void DistributedSampler::set_epoch(std::int64_t epoch, std::int64_t seen) {
  if (seen < 0)
    throw std::invalid_argument("DistributedSampler: expected seen >= 0, got " + std::to_string(seen));
  epoch_ = epoch;
  seen_ = std::min(seen, size_);  // padding may have added more
}

std::int64_t DistributedSampler::num_samples() const {
  const auto left = size_ - seen_;
  return options_.drop_last ? left / num_replicas_ : (left + num_replicas_ - 1) / num_replicas_;
}

std::int64_t DistributedSampler::num_without_padding() const {
  // Places rank, rank + num_replicas, ... of the rest; drop_last cuts off some.
  const auto places = (size_ - seen_ - rank_ + num_replicas_ - 1) / num_replicas_;
  return std::min(num_samples(), std::max<std::int64_t>(places, 0));
}

std::vector<std::int64_t> DistributedSampler::indices() const {
  std::vector<std::int64_t> order;
  if (options_.shuffle) order = randperm(size_, options_.seed + static_cast<std::uint64_t>(epoch_));
  std::vector<std::int64_t> mine(static_cast<std::size_t>(num_samples()));
  // Padding repeats the order from its start as often as needed: counts modulo size.
  auto place = seen_ + rank_;
  for (auto& index : mine) {
    index = options_.shuffle ? order[static_cast<std::size_t>(place % size_)] : place % size_;
    place += num_replicas_;
  }
  return mine;
}

std::vector<std::int64_t> exact_share(std::int64_t size, int num_replicas, int rank) {
  std::vector<std::int64_t> mine;
  for (std::int64_t i = rank; i < size; i += num_replicas) mine.push_back(i);
  return mine;
}

}  // namespace ddprun::data
