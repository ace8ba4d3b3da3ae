#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ddprun/data/dataset.h>
#include <ddprun/data/prefetcher.h>

namespace ddprun::data {

/// Batches of a data set in a given order, prepared ahead by loader threads that live as long as the loader.
/// Batches and their order do not depend on the number of threads.
///
///   Loader loader(set, {.batch_size = 128, .threads = 2});
///   for (epoch ...) {
///     loader.start_epoch(sampler.indices(), epoch);
///     while (auto batch = loader.next()) ...
///   }
class Loader {
 public:
  struct Options {
    std::int64_t batch_size = 1;  ///< the last batch of an epoch may be smaller
    int threads = 1;              ///< 0: next() prepares each batch itself
    int ahead = 2;                ///< batches that each thread may be ahead of next()
    bool pin_memory = false;  ///< in page-locked memory, so copies to a GPU can be asynchronous; needs CUDA
    /// Where batches arrive. For a GPU, loader threads send them ahead, raw and from page-locked memory, and
    /// finish them there on a stream of their own; next() does not wait for that.
    at::Device device = at::kCPU;
  };

  /// throws  std::invalid_argument unless batch_size >= 1, threads >= 0 and ahead >= 1
  Loader(const Dataset& dataset, const Options& options);

  /// For a single pass; start_epoch(indices) is already done.
  Loader(const Dataset& dataset, std::vector<std::int64_t> indices, std::int64_t batch_size, int threads,
         at::Device device = at::kCPU);

  /// Begins an epoch, dropping the rest of the previous one.
  ///
  /// indices      the examples of the whole epoch, in order
  /// epoch        from 0, for augmentation
  /// first_batch  how many batches to skip, 0 .. batches(): where a resumed epoch continues
  /// throws       std::invalid_argument if first_batch is out of range
  void start_epoch(std::vector<std::int64_t> indices, std::int64_t epoch = 0, std::int64_t first_batch = 0) {
    prefetcher_.start_epoch(std::move(indices), epoch, first_batch);
  }

  /// The next batch; nullopt after the last. Rethrows what the data set threw for it.
  std::optional<Batch> next();

  /// Batches of the epoch, including skipped ones.
  std::int64_t batches() const { return prefetcher_.batches(); }

  /// The number, from 0, of the batch that next() will return; batches() after the last. Checkpoints store
  /// it.
  std::int64_t position() const { return prefetcher_.position(); }

 private:
  Prefetcher prefetcher_;
};

}  // namespace ddprun::data
