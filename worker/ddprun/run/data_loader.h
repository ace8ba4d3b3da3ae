#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>

#include <concepts>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include <ddprun/data/dataset.h>
#include <ddprun/data/device_copy.h>
#include <ddprun/data/prefetcher.h>
#include <ddprun/ddp/model_tensors.h>
#include <ddprun/run/context.h>

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

/// An example that StackPairs takes.
template <typename Example>
concept PairOfTensors = requires(Example& example) {
  at::Tensor(example.first), at::Tensor(example.second);
}
|| requires(Example& example) { at::Tensor(example.data), at::Tensor(example.target); };

/// Stacks examples that are pairs of tensors, or have members data and target as torch::data::Example has.
struct StackPairs {
  template <typename Example>
  requires PairOfTensors<Example> std::pair<at::Tensor, at::Tensor>
  operator()(std::vector<Example> examples) const {
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

/// What a DataLoader takes unless it is an IterableDataset.
template <typename Dataset>
concept MapDataset = requires(Dataset& dataset) {
  dataset.size();
}
&&(
    requires(Dataset& dataset, const std::vector<std::int64_t>& indices) { dataset.get_batch(indices); } ||
    requires(Dataset & dataset) { dataset.get(std::size_t{0}); });

/// A batch of these examples: the data set's own, or collated.
template <typename Dataset, typename Collate>
auto make_batch(Dataset& dataset, const Collate& collate, const std::vector<std::int64_t>& indices) {
  if constexpr (requires { dataset.get_batch(indices); }) {
    return dataset.get_batch(indices);
  } else if constexpr (MapDataset<Dataset>) {
    using Example = std::decay_t<decltype(dataset.get(0))>;
    constexpr bool collates = std::invocable<const Collate&, std::vector<Example>>;
    static_assert(
        collates,
        "DataLoader: expected examples that are pairs of tensors, or a fourth argument that makes a batch of "
        "them: a function that takes a std::vector of what the data set's get(index) returns");
    std::vector<Example> examples;
    for (const auto index : indices) examples.push_back(dataset.get(static_cast<std::size_t>(index)));
    if constexpr (collates) return collate(std::move(examples));
  } else {
    return nullptr;  // DataLoader says what is missing
  }
}

/// Calls change for each tensor in a batch (data::Loaded).
inline constexpr auto kVisitBatch = [](auto& batch, const auto& change) {
  ddp::visit_output(batch, [&](at::Tensor& tensor) {
    if (tensor.defined()) change(tensor);
  });
};

/// In use on the context's device; nullptr: there is none.
template <typename Batch>
std::shared_ptr<Batch> received(std::shared_ptr<data::Loaded<Batch>> loaded) {
  if (!loaded) return nullptr;
  loaded->receive(kVisitBatch);
  auto* batch = &loaded->batch;
  return {std::move(loaded), batch};
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

/// This rank's share of a data set, in batches on the context's device:
///
///   DataLoader loader(ctx, Moons(4000), {.batch_size = 64});
///   for (auto& [input, target] : loader.epoch(epoch)) ...
///
/// Dataset  has size() and one of these, which several threads call at once: get_batch(const
///          std::vector<int64_t>& indices): a batch of any type; get(int64_t index): an example of any type;
///          collate makes batches of them. LibTorch's own data sets (torch::data::datasets) have it.
///          Alternatively, an IterableDataset.
///
/// Moves to the device every tensor that ddp::visit_output() finds in a batch. To a GPU the threads copy
/// batches ahead.
template <typename Dataset, typename Collate = StackPairs>
class DataLoader {
  static_assert(
      MapDataset<Dataset>,
      "DataLoader: expected a data set with size(), and get(index), which returns an example, or "
      "get_batch(const std::vector<std::int64_t>& indices), which returns a batch; or one with "
      "stream(ctx, epoch), which returns a function that returns the next example in a std::optional");
  using Indices = std::vector<std::int64_t>;
  using Batch = decltype(make_batch(std::declval<Dataset&>(), std::declval<const Collate&>(), Indices()));

 public:
  DataLoader(const Context& context, Dataset dataset, const DataLoaderOptions& options = {},
             Collate collate = {})
      : context_(context),
        dataset_(std::make_shared<Dataset>(std::move(dataset))),
        collate_(std::move(collate)),
        options_(options),
        prefetcher_(
            [this](const Indices& indices, std::int64_t) {
              auto loaded = std::make_shared<data::Loaded<Batch>>(
                  data::Loaded<Batch>{make_batch(*dataset_, collate_, indices)});
              loaded->send(context_.device(), options_.pin_memory, kVisitBatch, [] {});
              return loaded;
            },
            {options.batch_size, options.num_workers, options.prefetch_factor, options.drop_last}) {}
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  /// The batches of an epoch, from 0, for a single loop. Drops the rest of an earlier epoch.
  EpochOfBatches<DataLoader> epoch(std::int64_t number = 0) {
    const auto done = options_.each_once ? std::nullopt : context_.begin_epoch(number);
    trains_ = done.has_value();
    epoch_ = number;
    done_ = done.value_or(0);
    prefetcher_.start_epoch(indices(number), number, done_);
    return {this};
  }

  /// The next batch of the epoch; nullptr after the last.
  std::shared_ptr<Batch> next() {
    const bool more = done_ < batches();
    trains_ ? context_.begin_batch(epoch_, done_, more) : context_.check_round();
    done_ += more ? 1 : 0;
    return received(std::static_pointer_cast<data::Loaded<Batch>>(prefetcher_.next()));
  }

  /// The number of the batch in use, from 1: also after a lost rank, whose epoch goes on in the middle.
  std::int64_t position() const { return done_; }
  /// Of the current epoch, or of the next if none has begun, on this rank, including those skipped after a
  /// lost rank.
  std::int64_t batches() const {
    if (epoch_ >= 0) return prefetcher_.batches();
    return prefetcher_.batches_of(static_cast<std::int64_t>(indices(0).size()));
  }
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

  const Context& context_;
  const std::shared_ptr<Dataset> dataset_;
  const Collate collate_;
  const DataLoaderOptions options_;
  std::int64_t epoch_ = -1, done_ = 0;  // batches of it, including skipped ones; -1: none has begun
  bool trains_ = false;                 // its position is the training's
  data::Prefetcher prefetcher_;         // last: its threads use the members above
};

/// A data set of unknown length, read from its beginning: torch.utils.data.IterableDataset. stream() returns
/// a function that returns the next example of this rank's share, and nullopt after the last. Ranks with
/// shares of different lengths train with model.join().
template <typename Dataset>
concept IterableDataset = requires(Dataset& dataset, const Context& context) {
  { dataset.stream(context, std::int64_t{0})().has_value() } -> std::convertible_to<bool>;
};

/// For an IterableDataset: batches in stream order, the next one prepared by a thread if num_workers is above
/// 0. The options shuffle, seed, each_once and prefetch_factor do not apply.
template <IterableDataset Dataset, typename Collate>
class DataLoader<Dataset, Collate> {
  using Stream = decltype(std::declval<Dataset&>().stream(std::declval<const Context&>(), std::int64_t{0}));
  using Example = std::decay_t<decltype(*std::declval<Stream&>()())>;
  using Batch = std::invoke_result_t<const Collate&, std::vector<Example>>;

 public:
  DataLoader(const Context& context, Dataset dataset, const DataLoaderOptions& options = {},
             Collate collate = {})
      : context_(context), dataset_(std::move(dataset)), collate_(std::move(collate)), options_(options) {
    if (options.batch_size < 1) throw std::invalid_argument("DataLoader: expected batch_size >= 1");
  }
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  /// The batches of an epoch, for a single loop.
  EpochOfBatches<DataLoader> epoch(std::int64_t number = 0) {
    if (ahead_.valid()) ahead_.wait();
    const auto done = context_.begin_epoch(number);
    trains_ = done.has_value();
    epoch_ = number;
    done_ = done.value_or(0);
    left_out_ = done_ * options_.batch_size;
    stream_.emplace(dataset_.stream(context_, number));
    ahead_ = prepare();
    return {this};
  }

  std::shared_ptr<Batch> next() {
    auto batch = received(ahead_.get());
    ahead_ = prepare();
    const bool more = batch != nullptr;
    trains_ ? context_.begin_batch(epoch_, done_, more) : context_.check_round();
    done_ += more ? 1 : 0;
    return batch;
  }

  /// As DataLoader's.
  std::int64_t position() const { return done_; }
  Dataset& dataset() { return dataset_; }

 private:
  std::future<std::shared_ptr<data::Loaded<Batch>>> prepare() {
    return std::async(options_.num_workers > 0 ? std::launch::async : std::launch::deferred,
                      [this] { return make(); });
  }

  std::shared_ptr<data::Loaded<Batch>> make() {
    for (; stream_ && left_out_ > 0; --left_out_)
      if (!(*stream_)()) stream_.reset();
    std::vector<Example> examples;
    const auto size = static_cast<std::size_t>(options_.batch_size);
    while (stream_ && examples.size() < size) {
      if (auto example = (*stream_)())
        examples.push_back(std::move(*example));
      else
        stream_.reset();
    }
    if (examples.empty() || (options_.drop_last && examples.size() < size)) return nullptr;
    auto loaded = std::make_shared<data::Loaded<Batch>>(data::Loaded<Batch>{collate_(std::move(examples))});
    loaded->send(context_.device(), options_.pin_memory, kVisitBatch, [] {});
    return loaded;
  }

  const Context& context_;
  Dataset dataset_;
  const Collate collate_;
  const DataLoaderOptions options_;
  std::int64_t epoch_ = 0, done_ = 0;                        // batches of it, including skipped ones
  std::int64_t left_out_ = 0;                                // examples of the batches to skip
  bool trains_ = false;                                      // its position is the training's
  std::optional<Stream> stream_;                             // empty after its end
  std::future<std::shared_ptr<data::Loaded<Batch>>> ahead_;  // last: its thread uses the members above
};

}  // namespace ddprun
