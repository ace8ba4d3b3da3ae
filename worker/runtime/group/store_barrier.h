#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/flight/missing_ranks.h>
#include <ddprun/group/store.h>

namespace ddprun::ddp {

/// A barrier through the store: it needs no connections between the ranks, and when it fails it names the
/// missing ranks. The last rank to arrive, or the first to time out, decides how it ends for all.
class StoreBarrier {
 public:
  /// world_ranks  of the members, in the order of their ranks in the group
  StoreBarrier(StorePtr store, int rank, std::vector<int> world_ranks)
      : store_(std::move(store)), rank_(rank), world_ranks_(std::move(world_ranks)) {}

  /// Returns on all ranks once all have called it, or throws on all.
  ///
  /// what    begins the error's message
  /// throws  MissingRanks once a rank has waited that long; c10::Error if the store is unreachable
  void meet(const std::string& what, std::chrono::milliseconds timeout);

 private:
  std::string key(const std::string& name) const;
  std::vector<int> absent() const;
  void give_verdict(const std::string& verdict);
  void forget_last_round();
  [[noreturn]] void fail(const std::string& what, const std::string& verdict);

  StorePtr store_;
  int rank_;
  std::vector<int> world_ranks_;
  int round_ = -1;
};

}  // namespace ddprun::ddp
