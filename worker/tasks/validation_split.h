#pragma once

#include <memory>

#include <ddprun/data/dataset.h>
#include "worker/config/config.h"

namespace ddprun::worker {

struct SplitSet {
  std::shared_ptr<const data::Dataset> train;
  std::shared_ptr<const data::Dataset> validation;  ///< null: none
};

/// Splits a training set according to --val-split, --limit-train and --limit-val; the seed picks the examples
/// for validation.
///
/// plain    the same examples without augmentation, for validation
/// throws   UsageError if there are too few examples for two parts
SplitSet split_for_validation(const std::shared_ptr<const data::Dataset>& whole,
                              const std::shared_ptr<const data::Dataset>& plain, const Config& config);

/// The first `limit` examples; all of them if limit is 0.
std::shared_ptr<const data::Dataset> first_of(const std::shared_ptr<const data::Dataset>& set,
                                              std::int64_t limit);

}  // namespace ddprun::worker
