#include "worker/tasks/validation_split.h"

#include <numeric>
#include <sstream>
#include <stdexcept>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/data/subset.h>

namespace ddprun::worker {

std::shared_ptr<const data::Dataset> first_of(const std::shared_ptr<const data::Dataset>& set,
                                              std::int64_t limit) {
  if (limit == 0 || limit >= set->size()) return set;
  std::vector<std::int64_t> indices(static_cast<std::size_t>(limit));
  std::iota(indices.begin(), indices.end(), 0);
  return std::make_shared<data::Subset>(set, std::move(indices));
}

SplitSet split_for_validation(const std::shared_ptr<const data::Dataset>& whole,
                              const std::shared_ptr<const data::Dataset>& plain, const Config& config) {
  const auto& options = config.data;
  if (options.val_split <= 0) return {first_of(whole, options.limit_train), nullptr};
  try {
    auto split = data::random_split(whole->size(), options.val_split, config.train.seed);
    return {
        std::make_shared<data::Subset>(whole, data::first(std::move(split.train), options.limit_train)),
        std::make_shared<data::Subset>(plain, data::first(std::move(split.validation), options.limit_val))};
  } catch (const std::invalid_argument&) {
    std::ostringstream message;
    message << "--val-split " << options.val_split << ": expected two examples or more, one a part, got "
            << whole->size();
    throw UsageError(message.str());
  }
}

}  // namespace ddprun::worker
