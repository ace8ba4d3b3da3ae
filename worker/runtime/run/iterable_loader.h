#pragma once

#include <concepts>
#include <future>
#include <stdexcept>

#include <ddprun/run/context.h>
#include <ddprun/run/device_batches.h>
#include <ddprun/run/make_batch.h>

namespace ddprun {

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
      : context_(context),
        dataset_(std::move(dataset)),
        collate_(std::move(collate)),
        options_(options),
        to_device_(context.device()) {
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
    to_device_.start();
    return {this};
  }

  std::shared_ptr<Batch> next() {
    auto batch = to_device_.next([this] {
      auto next = ahead_.get();
      ahead_ = prepare();
      return next;
    });
    const bool more = batch != nullptr;
    trains_ ? context_.begin_batch(epoch_, done_, more) : context_.check_round();
    done_ += more ? 1 : 0;
    return batch;
  }

  /// As DataLoader's.
  std::int64_t position() const { return done_; }
  Dataset& dataset() { return dataset_; }

 private:
  std::future<std::shared_ptr<Batch>> prepare() {
    return std::async(options_.num_workers > 0 ? std::launch::async : std::launch::deferred,
                      [this] { return make(); });
  }

  std::shared_ptr<Batch> make() {
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
    return to_device_.prepared(collate_(std::move(examples)), options_.pin_memory);
  }

  const Context& context_;
  Dataset dataset_;
  const Collate collate_;
  const DataLoaderOptions options_;
  std::int64_t epoch_ = 0, done_ = 0;  // batches of it, including skipped ones
  std::int64_t left_out_ = 0;          // examples of the batches to skip
  bool trains_ = false;                // its position is the training's
  DeviceBatches<Batch> to_device_;
  std::optional<Stream> stream_;               // empty after its end
  std::future<std::shared_ptr<Batch>> ahead_;  // last: its thread uses the members above
};

}  // namespace ddprun
