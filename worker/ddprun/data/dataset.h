#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
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

/// Examples in memory, ready for a model: row i of both tensors is example i.
class TensorDataset : public Dataset {
 public:
  /// throws  std::invalid_argument unless both have the same number of rows, at least one
  TensorDataset(torch::Tensor input, torch::Tensor target);

  std::int64_t size() const override { return input_.size(0); }
  Batch get_batch(const std::vector<std::int64_t>& indices) const override;

  const torch::Tensor& input() const { return input_; }
  const torch::Tensor& target() const { return target_; }

 private:
  torch::Tensor input_, target_;
};

// Without a generator both draw from the default one, as Python does: after torch::manual_seed(0), the data
// and then the model's weights equal those of a Python script that draws in the same order.

/// The pairs of the tutorial's MyTrainDataset: torch.rand(size, 20), then torch.rand(size, 1).
TensorDataset make_toy_dataset(std::optional<at::Generator> generator = std::nullopt,
                               std::int64_t size = 2048);

/// torch.randn(size, 10), then labels torch.randint(0, 2, (size, 1)) as floats: nothing to learn.
TensorDataset make_linear_dataset(std::optional<at::Generator> generator = std::nullopt,
                                  std::int64_t size = 1000);

/// Which examples a rank sees in an epoch, in order; bit for bit the same as
/// torch.utils.data.distributed.DistributedSampler.
///
/// The order is randperm(size) seeded with seed + epoch (or 0 .. size-1), padded from its own start to a
/// multiple of num_replicas (drop_last: cut to one), and rank r takes every num_replicas-th from r on.
class DistributedSampler {
 public:
  struct Options {
    bool shuffle = true;
    std::uint64_t seed = 0;
    bool drop_last = false;
  };

  /// throws  std::invalid_argument unless 0 <= rank < num_replicas and size >= 1
  DistributedSampler(std::int64_t size, int num_replicas, int rank, const Options& options);

  /// Sets the epoch, from 0, for indices(). Without a call, every epoch has the same order.
  ///
  /// seen    how many places of the epoch's order the ranks together have already trained on; indices()
  ///         divides the rest. So an epoch resumes where it stopped, even with another number of ranks. If
  ///         seen is a multiple of num_replicas * batch size, each rank continues with exactly its own share
  /// throws  std::invalid_argument if seen is below 0
  void set_epoch(std::int64_t epoch, std::int64_t seen = 0);

  /// How many examples each rank has left; the same on every rank.
  std::int64_t num_samples() const;

  /// How many of indices() are not padding, which comes last.
  std::int64_t num_without_padding() const;

  std::vector<std::int64_t> indices() const;

 private:
  std::int64_t size_;
  int num_replicas_;
  int rank_;
  Options options_;
  std::int64_t epoch_ = 0, seen_ = 0;
};

/// Every num_replicas-th of 0 .. size-1 from rank on, without padding: together, the ranks cover each example
/// exactly once. For metrics.
std::vector<std::int64_t> exact_share(std::int64_t size, int num_replicas, int rank);

/// Maps 32 random bits to 0 .. count - 1, each with probability 1 / count to within 2^-32.
template <typename Integer>
Integer uniform_below(Integer count, std::uint32_t random) {
  return static_cast<Integer>((std::uint64_t{random} * static_cast<std::uint64_t>(count)) >> 32);
}

/// torch.randperm(size, generator=torch.Generator().manual_seed(seed)), bit for bit.
std::vector<std::int64_t> randperm(std::int64_t size, std::uint64_t seed);

}  // namespace ddprun::data
