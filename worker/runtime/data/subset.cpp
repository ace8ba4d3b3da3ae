#include <ddprun/data/subset.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include <ddprun/data/random.h>

namespace ddprun::data {

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
    throw std::invalid_argument("random_split: expected two examples or more, one a part, got " +
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

}  // namespace ddprun::data
