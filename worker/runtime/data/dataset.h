#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace ddprun::data {

/// Some examples, ready for a model. B examples:
struct Batch {
  at::Tensor input;   ///< float [B, ...], what the model's forward takes
  at::Tensor target;  ///< [B, ...], what the loss compares with; class numbers are int64
  /// What else a task's step needs, of any shapes, in the order that its data set documents.
  std::vector<at::Tensor> extra = {};
  /// What only figures show, of any shapes: stays on the CPU.
  std::vector<at::Tensor> shown = {};

  std::int64_t size() const { return input.size(0); }

  /// The batch of what `change` makes of each tensor but `shown`.
  template <typename Change>
  Batch mapped(Change change) const {
    Batch batch{change(input), change(target)};
    for (const auto& tensor : extra) batch.extra.push_back(change(tensor));
    batch.shown = shown;
    return batch;
  }
};

/// A fixed set of examples, numbered from 0. Const, so that several loader threads read one at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;

  /// The examples with these numbers, in this order. Every number is in [0, size()).
  virtual Batch get_batch(const std::vector<std::int64_t>& indices) const = 0;

  /// The same as training sees them in that epoch (from 0): augmented, where the data set does that, at
  /// random by its seed, the epoch and each example's number alone. What a Loader asks for.
  virtual Batch get_epoch_batch(const std::vector<std::int64_t>& indices, std::int64_t /*epoch*/) const {
    return get_batch(indices);
  }
};

}  // namespace ddprun::data
