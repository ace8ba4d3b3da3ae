#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "worker/data/dataset.h"

namespace ddprun::data {

/// Batches of a data set in a given order, prepared ahead by loader threads. The order and the batches are
/// the same whatever the number of threads.
class Loader {
 public:
  /// indices     the examples, in order; the last batch may be smaller
  /// batch_size  at least 1
  /// threads     0 prepares each batch in next() itself
  Loader(const Dataset& dataset, std::vector<std::int64_t> indices, std::int64_t batch_size, int threads);
  ~Loader();

  /// The next batch; nullopt after the last. Rethrows what the data set threw for this batch.
  std::optional<Batch> next();

  /// Batches in all.
  std::int64_t batches() const;

 private:
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace ddprun::data
