#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace ddprun {

/// As in torch.utils.data.DataLoader and DistributedSampler.
struct DataLoaderOptions {
  std::int64_t batch_size = 1;  ///< per rank
  bool shuffle = true;          ///< the same order on any machine, by seed and epoch
  std::uint64_t seed = 0;
  bool drop_last = false;   ///< drop an epoch's last batch if it is smaller
  bool each_once = false;   ///< for evaluation: no example twice, in order; ranks may differ by one example
  int num_workers = 1;      ///< threads that prepare batches ahead; 0: none
  int prefetch_factor = 2;  ///< batches that each thread may prepare ahead
  bool pin_memory = true;   ///< for a GPU: use page-locked memory, from which copies are asynchronous
};

/// Stacks examples that are pairs of tensors, or have members data and target as torch::data::Example has.
struct StackPairs {
  template <typename Example>
  std::pair<at::Tensor, at::Tensor> operator()(std::vector<Example> examples) const {
    std::vector<at::Tensor> inputs, targets;
    for (auto& example : examples) {
      if constexpr (requires { example.data; }) {
        inputs.push_back(example.data), targets.push_back(example.target);
      } else {
        inputs.push_back(example.first), targets.push_back(example.second);
      }
    }
    return {at::stack(inputs), at::stack(targets)};
  }
};

/// Defined in data_loader.h.
template <typename Dataset, typename Collate = StackPairs>
class DataLoader;

/// A batch of these examples: the data set's own, or collated.
template <typename Dataset, typename Collate>
auto make_batch(Dataset& dataset, const Collate& collate, const std::vector<std::int64_t>& indices) {
  if constexpr (requires { dataset.get_batch(indices); }) {
    return dataset.get_batch(indices);
  } else {
    std::vector<std::decay_t<decltype(dataset.get(0))>> examples;
    for (const auto index : indices) examples.push_back(dataset.get(static_cast<std::size_t>(index)));
    return collate(std::move(examples));
  }
}

/// An epoch of a loader, for a range-based for loop: loader.next() until it is null.
template <typename Loader>
struct EpochOfBatches {
  class Iterator {
   public:
    explicit Iterator(Loader* loader) : loader_(loader), batch_(loader->next()) {}
    auto& operator*() const { return *batch_; }
    Iterator& operator++() {
      batch_ = loader_->next();
      return *this;
    }
    bool operator==(std::nullptr_t) const { return batch_ == nullptr; }

   private:
    Loader* loader_;
    decltype(std::declval<Loader&>().next()) batch_;
  };

  Loader* loader;
  Iterator begin() const { return Iterator(loader); }
  std::nullptr_t end() const { return nullptr; }
};

}  // namespace ddprun
