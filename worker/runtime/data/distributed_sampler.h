#pragma once

#include <cstdint>
#include <vector>

namespace ddprun::data {

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

}  // namespace ddprun::data
