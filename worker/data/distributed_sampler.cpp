#include "worker/data/distributed_sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace ddprun::data {
namespace {

std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed) {
  const auto order =
      torch::randperm(size, at::detail::createCPUGenerator(seed), torch::TensorOptions(torch::kInt64));
  const auto* begin = order.const_data_ptr<std::int64_t>();
  return {begin, begin + size};
}

std::vector<std::int64_t> counting(std::int64_t size) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::int64_t samples_per_rank(std::int64_t size, int num_replicas, bool drop_last) {
  return drop_last ? size / num_replicas : (size + num_replicas - 1) / num_replicas;
}

}  // namespace

DistributedSampler::DistributedSampler(std::int64_t size, int num_replicas, int rank, const Options& options)
    : size_(size), num_replicas_(num_replicas), rank_(rank), options_(options), num_samples_(0) {
  if (rank < 0 || rank >= num_replicas || size < 1)
    throw std::invalid_argument("DistributedSampler: expected 0 <= rank < num_replicas and size >= 1");
  num_samples_ = samples_per_rank(size, num_replicas, options.drop_last);
}

std::int64_t DistributedSampler::num_without_padding() const {
  // Places rank, rank + num_replicas, ... below size; drop_last has cut off some of them.
  const auto places = (size_ - rank_ + num_replicas_ - 1) / num_replicas_;
  return std::min(num_samples_, std::max<std::int64_t>(places, 0));
}

std::vector<std::int64_t> DistributedSampler::indices() const {
  const auto order = options_.shuffle ? permutation(size_, options_.seed + static_cast<std::uint64_t>(epoch_))
                                      : counting(size_);
  std::vector<std::int64_t> mine;
  mine.reserve(static_cast<std::size_t>(num_samples_));
  // Padding repeats the order from its start, as often as it takes: the same as counting modulo size.
  for (std::int64_t i = 0; i < num_samples_; ++i)
    mine.push_back(order[static_cast<std::size_t>((rank_ + i * num_replicas_) % size_)]);
  return mine;
}

std::vector<std::int64_t> exact_share(std::int64_t size, int num_replicas, int rank) {
  std::vector<std::int64_t> mine;
  for (std::int64_t i = rank; i < size; i += num_replicas) mine.push_back(i);
  return mine;
}

}  // namespace ddprun::data
