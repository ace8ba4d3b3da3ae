#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ddprun/data/distributed_sampler.h>
#include <ddprun/data/prefetcher.h>
#include <ddprun/ddp/output_tensors.h>
#include <ddprun/run/context.h>

namespace ddprun {

/// As torch.utils.data.DataLoader's and DistributedSampler's.
struct DataLoaderOptions {
  std::int64_t batch_size = 1;  ///< of each rank
  bool shuffle = true;          ///< the same order on any machine, by seed and epoch
  std::uint64_t seed = 0;
  bool drop_last = false;   ///< leave out an epoch's last batch if it is smaller
  bool each_once = false;   ///< for evaluation: no example twice, in order; ranks may differ by one example
  int num_workers = 1;      ///< threads that prepare batches ahead; 0: none
  int prefetch_factor = 2;  ///< batches that each of them may be ahead
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

/// This rank's share of a data set, in batches on the context's device:
///
///   DataLoader loader(ctx, Moons(4000), {.batch_size = 64});
///   for (auto& [input, target] : loader.epoch(epoch)) ...
///
/// Dataset  has size() and one of these, which several threads call at once:
///          get_batch(const std::vector<int64_t>& indices): a batch of any type;
///          get(int64_t index): an example of any type, of which collate makes a batch. LibTorch's own data
///          sets (torch::data::datasets) have it.
///
/// Batches go to the device tensor by tensor: those that ddp::visit_output() finds in their type.
template <typename Dataset, typename Collate = StackPairs>
class DataLoader {
  using Indices = std::vector<std::int64_t>;
  using Batch = decltype(make_batch(std::declval<Dataset&>(), std::declval<const Collate&>(), Indices()));

 public:
  using Options = DataLoaderOptions;

  DataLoader(const Context& context, Dataset dataset, const Options& options = {}, Collate collate = {})
      : context_(context),
        dataset_(std::make_shared<Dataset>(std::move(dataset))),
        collate_(std::move(collate)),
        options_(options),
        prefetcher_(
            [this](const Indices& indices, std::int64_t) {
              return std::make_shared<Batch>(make_batch(*dataset_, collate_, indices));
            },
            {options.batch_size, options.num_workers, options.prefetch_factor, options.drop_last}) {}
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  /// The batches of an epoch, from 0, for one loop over them. An earlier epoch's rest is dropped.
  auto epoch(std::int64_t number = 0) {
    prefetcher_.start_epoch(indices(number), number);
    return Epoch{this};
  }

  std::int64_t batches() const { return prefetcher_.batches(); }  ///< of the current epoch, on this rank
  Dataset& dataset() const { return *dataset_; }

 private:
  Indices indices(std::int64_t epoch) const {
    std::int64_t size = 0;
    if constexpr (requires { dataset_->size().value(); }) {
      size = static_cast<std::int64_t>(dataset_->size().value());
    } else {
      size = static_cast<std::int64_t>(dataset_->size());
    }
    const int ranks = context_.world_size(), rank = context_.rank();
    if (options_.each_once) return data::exact_share(size, ranks, rank);
    data::DistributedSampler sampler(size, ranks, rank,
                                     {options_.shuffle, options_.seed, options_.drop_last});
    sampler.set_epoch(epoch);
    return sampler.indices();
  }

  std::shared_ptr<Batch> next() {
    const auto batch = std::static_pointer_cast<Batch>(prefetcher_.next());
    if (batch && !context_.device().is_cpu())
      ddp::visit_output(*batch, [&](at::Tensor& tensor) { tensor = tensor.to(context_.device()); });
    return batch;
  }

  class Iterator {
   public:
    explicit Iterator(DataLoader* loader) : loader_(loader), batch_(loader->next()) {}
    Batch& operator*() const { return *batch_; }
    Iterator& operator++() {
      batch_ = loader_->next();
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return batch_ == nullptr; }

   private:
    DataLoader* loader_;
    std::shared_ptr<Batch> batch_;
  };

  struct Epoch {
    DataLoader* loader;
    Iterator begin() const { return Iterator(loader); }
    std::default_sentinel_t end() const { return {}; }
  };

  const Context& context_;
  const std::shared_ptr<Dataset> dataset_;
  const Collate collate_;
  const Options options_;
  data::Prefetcher prefetcher_;  // last: its threads use the others
};

}  // namespace ddprun
