#include <ddprun/data/dataset.h>

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace ddprun::data {

std::vector<std::int64_t> randperm(std::int64_t size, std::uint64_t seed) {
  const auto order =
      torch::randperm(size, at::detail::createCPUGenerator(seed), torch::TensorOptions(torch::kInt64));
  const auto* begin = order.const_data_ptr<std::int64_t>();
  return {begin, begin + size};
}

Subset::Subset(std::shared_ptr<const Dataset> whole, std::vector<std::int64_t> indices)
    : whole_(std::move(whole)), indices_(std::move(indices)) {
  for (const auto index : indices_)
    if (index < 0 || index >= whole_->size())
      throw std::invalid_argument("Subset: expected numbers from 0 to " + std::to_string(whole_->size() - 1) +
                                  ", got " + std::to_string(index));
}

std::vector<std::int64_t> Subset::in_whole(const std::vector<std::int64_t>& indices) const {
  std::vector<std::int64_t> numbers;
  numbers.reserve(indices.size());
  for (const auto index : indices) numbers.push_back(indices_[static_cast<std::size_t>(index)]);
  return numbers;
}

Batch Subset::get_batch(const std::vector<std::int64_t>& indices) const {
  return whole_->get_batch(in_whole(indices));
}

Batch Subset::get_raw_batch(const std::vector<std::int64_t>& indices, std::int64_t epoch) const {
  return whole_->get_raw_batch(in_whole(indices), epoch);
}

Batch Subset::get_epoch_batch(const std::vector<std::int64_t>& indices, std::int64_t epoch) const {
  return whole_->get_epoch_batch(in_whole(indices), epoch);
}

Split random_split(std::int64_t size, double fraction, std::uint64_t seed) {
  if (!(fraction > 0 && fraction < 1))
    throw std::invalid_argument("random_split: expected a fraction above 0 and below 1, got " +
                                std::to_string(fraction));
  // PyTorch rounds both parts down, then distributes the rest in turn: to the first part, the second, ...
  const auto share = [size](double part) {
    return static_cast<std::int64_t>(std::floor(static_cast<double>(size) * part));
  };
  const auto left = size - share(1 - fraction) - share(fraction);
  if (size < 2)
    throw std::invalid_argument("random_split: expected at least two examples, one for each part, got " +
                                std::to_string(size));
  const auto train = std::clamp<std::int64_t>(share(1 - fraction) + (left + 1) / 2, 1, size - 1);
  const auto order = randperm(size, seed);
  return {{order.begin(), order.begin() + train}, {order.begin() + train, order.end()}};
}

std::vector<std::int64_t> first(std::vector<std::int64_t> indices, std::int64_t limit) {
  if (limit > 0 && limit < static_cast<std::int64_t>(indices.size()))
    indices.resize(static_cast<std::size_t>(limit));
  return indices;
}

TensorDataset::TensorDataset(torch::Tensor input, torch::Tensor target)
    : input_(std::move(input)), target_(std::move(target)) {
  if (input_.dim() < 1 || target_.dim() < 1 || input_.size(0) != target_.size(0) || input_.size(0) < 1)
    throw std::invalid_argument("TensorDataset: expected as many inputs as targets, and at least one");
}

Batch TensorDataset::get_batch(const std::vector<std::int64_t>& indices) const {
  const auto index_B = torch::tensor(indices, torch::kInt64);
  return {input_.index_select(0, index_B), target_.index_select(0, index_B)};
}

TensorDataset make_toy_dataset(std::optional<at::Generator> generator, std::int64_t size) {
  const auto rows = torch::rand({size, 21}, generator);  // each example's 20 inputs, then its target
  return {rows.narrow(1, 0, 20).contiguous(), rows.narrow(1, 20, 1).contiguous()};
}

TensorDataset make_linear_dataset(std::optional<at::Generator> generator, std::int64_t size) {
  auto input = torch::randn({size, 10}, generator);
  return {std::move(input), torch::randint(0, 2, {size, 1}, generator).to(torch::kFloat32)};
}

DistributedSampler::DistributedSampler(std::int64_t size, int num_replicas, int rank, const Options& options)
    : size_(size), num_replicas_(num_replicas), rank_(rank), options_(options) {
  if (rank < 0 || rank >= num_replicas || size < 1)
    throw std::invalid_argument("DistributedSampler: expected 0 <= rank < num_replicas and size >= 1");
}

void DistributedSampler::set_epoch(std::int64_t epoch, std::int64_t seen) {
  if (seen < 0) throw std::invalid_argument(c10::str("DistributedSampler: expected seen >= 0, got ", seen));
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
