#pragma once

#include <ddprun/data/dataset.h>
#include <ddprun/data/prefetcher.h>
#include <ddprun/run/context.h>
#include <ddprun/run/device_batches.h>
#include <ddprun/run/iterable_loader.h>
#include <ddprun/run/make_batch.h>

namespace ddprun {

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
/// Moves to the device every tensor that ddp::visit_output() finds in a batch. On a GPU the next batch is
/// copied while the current one is in use.
template <typename Dataset, typename Collate>
class DataLoader {
  using Indices = std::vector<std::int64_t>;
  using Batch = decltype(make_batch(std::declval<Dataset&>(), std::declval<const Collate&>(), Indices()));

 public:
  DataLoader(const Context& context, Dataset dataset, const DataLoaderOptions& options = {},
             Collate collate = {})
      : context_(context),
        dataset_(std::make_shared<Dataset>(std::move(dataset))),
        collate_(std::move(collate)),
        options_(options),
        to_device_(context.device()),
        prefetcher_(
            [this](const Indices& indices, std::int64_t) {
              return to_device_.prepared(make_batch(*dataset_, collate_, indices), options_.pin_memory);
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
    to_device_.start();
    return {this};
  }

  /// The next batch of the epoch; nullptr after the last.
  std::shared_ptr<Batch> next() {
    const bool more = done_ < batches();
    trains_ ? context_.begin_batch(epoch_, done_, more) : context_.check_round();
    done_ += more ? 1 : 0;
    return to_device_.next([this] { return std::static_pointer_cast<Batch>(prefetcher_.next()); });
  }

  /// The number of the batch in use, from 1: also after a lost rank, whose epoch goes on in the middle.
  std::int64_t position() const { return done_; }
  /// Of the current epoch, on this rank, including those skipped after a lost rank.
  std::int64_t batches() const { return prefetcher_.batches(); }
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
  std::int64_t epoch_ = 0, done_ = 0;  // batches of it, including skipped ones
  bool trains_ = false;                // its position is the training's
  DeviceBatches<Batch> to_device_;
  data::Prefetcher prefetcher_;  // last: its threads use the members above
};

}  // namespace ddprun
