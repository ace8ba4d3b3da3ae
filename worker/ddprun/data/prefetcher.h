#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace ddprun::data {

/// Batches of any type in a given order, prepared ahead by threads that live as long as this; the basis of
/// Loader and DataLoader. Batches and their order do not depend on the number of threads.
class Prefetcher {
 public:
  struct Options {
    std::int64_t batch_size = 1;
    int threads = 1;         ///< 0: next() prepares each batch itself
    int ahead = 2;           ///< batches that each thread may be ahead of next()
    bool drop_last = false;  ///< drop an epoch's last batch if it is smaller
  };

  /// Makes a batch of these examples; several threads call it at once.
  using Load =
      std::function<std::shared_ptr<void>(const std::vector<std::int64_t>& indices, std::int64_t epoch)>;

  /// throws  std::invalid_argument unless batch_size >= 1, threads >= 0 and ahead >= 1
  Prefetcher(Load load, const Options& options);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// As in Loader.
  void start_epoch(std::vector<std::int64_t> indices, std::int64_t epoch = 0, std::int64_t first_batch = 0);

  /// What load returned for the next batch; nullptr after the last. Rethrows load's exceptions.
  std::shared_ptr<void> next();

  std::int64_t batches() const;                          ///< of the epoch, including skipped ones
  std::int64_t batches_of(std::int64_t examples) const;  ///< of an epoch with so many
  std::int64_t position() const;                         ///< the number of the batch that next() will return

 private:
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace ddprun::data
