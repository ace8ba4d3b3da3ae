#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace ddprun::data {

/// B examples, ready for a model.
struct Batch {
  at::Tensor input;   ///< float [B, ...], what the model's forward takes
  at::Tensor target;  ///< [B, ...], what the loss compares with; class numbers are int64
  /// Anything else a task's step needs, in the order its data set documents.
  std::vector<at::Tensor> extra = {};
  /// For figures only; stays on the CPU.
  std::vector<at::Tensor> shown = {};

  std::int64_t size() const { return input.size(0); }

  /// Applies `change` to each tensor except `shown`, and those that are undefined.
  template <typename Change>
  Batch mapped(Change change) const {
    const auto changed = [&](const at::Tensor& tensor) { return tensor.defined() ? change(tensor) : tensor; };
    Batch batch{changed(input), changed(target)};
    for (const auto& tensor : extra) batch.extra.push_back(changed(tensor));
    batch.shown = shown;
    return batch;
  }

  /// All except `shown`: input, target, extra.
  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> all;
    mapped([&](const at::Tensor& tensor) { return all.emplace_back(tensor); });
    return all;
  }
  /// The same with other tensors().
  Batch with(const std::vector<at::Tensor>& others) const {
    return mapped([next = others.begin()](const at::Tensor&) mutable { return *next++; });
  }
};

/// A fixed set of examples, numbered from 0. Const, so several loader threads can read it at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;

  /// The examples with these numbers, in this order. Every number is in [0, size()).
  virtual Batch get_batch(const std::vector<std::int64_t>& indices) const = 0;

  /// The same as training sees them in this epoch (from 0): data sets that augment do so here, depending only
  /// on their seed, the epoch and each example's number. A Loader calls this.
  virtual Batch get_epoch_batch(const std::vector<std::int64_t>& indices, std::int64_t /*epoch*/) const {
    return get_batch(indices);
  }

  /// The same in two halves, for a batch that travels to a GPU: a small form, made by a loader thread, and
  /// the work that remains to be done on the device. prepare() turns what get_raw_batch() returned into the
  /// values of get_epoch_batch().
  virtual Batch get_raw_batch(const std::vector<std::int64_t>& indices, std::int64_t epoch) const {
    return get_epoch_batch(indices, epoch);
  }
  virtual Batch prepare(Batch raw) const { return raw; }
};

}  // namespace ddprun::data
