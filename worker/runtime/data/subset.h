#pragma once

#include <memory>
#include <utility>

#include <ddprun/data/dataset.h>

namespace ddprun::data {

/// Some examples of a data set, in any order. Augmentation uses their numbers in the whole set.
class Subset : public Dataset {
 public:
  /// throws  std::invalid_argument if a number is not in [0, whole->size())
  Subset(std::shared_ptr<const Dataset> whole, std::vector<std::int64_t> indices);

  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  Batch get_batch(const std::vector<std::int64_t>& indices) const override;
  Batch get_epoch_batch(const std::vector<std::int64_t>& indices, std::int64_t epoch) const override;
  Batch get_raw_batch(const std::vector<std::int64_t>& indices, std::int64_t epoch) const override;
  Batch prepare(Batch raw) const override { return whole_->prepare(std::move(raw)); }

  const std::vector<std::int64_t>& indices() const { return indices_; }

 private:
  std::vector<std::int64_t> in_whole(const std::vector<std::int64_t>& indices) const;

  std::shared_ptr<const Dataset> whole_;
  std::vector<std::int64_t> indices_;
};

struct Split {
  std::vector<std::int64_t> train, validation;
};

/// Splits 0 .. size-1 at random, the same way on every rank and exactly as
/// torch.utils.data.random_split(set, [1 - fraction, fraction], torch.Generator().manual_seed(seed)), except
/// that a part that would be empty gets one example.
///
/// fraction  of the validation part, above 0 and below 1
/// throws    std::invalid_argument if the fraction is out of range or there are fewer than two examples
Split random_split(std::int64_t size, double fraction, std::uint64_t seed);

/// The first `limit` of the indices; all if limit is 0.
std::vector<std::int64_t> first(std::vector<std::int64_t> indices, std::int64_t limit);

}  // namespace ddprun::data
