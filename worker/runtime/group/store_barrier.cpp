#include <ddprun/group/store_barrier.h>

#include <algorithm>
#include <sstream>
#include <thread>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <ddprun/flight/missing_ranks.h>

namespace ddprun::ddp {
namespace {

constexpr const char* kAllArrived = "all";

std::vector<std::uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string to_text(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

std::string StoreBarrier::key(const std::string& name) const {
  return "barrier/" + std::to_string(round_) + "/" + name;
}

/// The members that have not arrived, by their ranks in the group.
std::vector<int> StoreBarrier::absent() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(world_ranks_.size()); ++rank)
    if (!store_->check({key(std::to_string(rank))})) ranks.push_back(rank);
  return ranks;
}

void StoreBarrier::give_verdict(const std::string& verdict) {
  store_->compareSet(key("verdict"), {}, to_bytes(verdict));  // unless there is one
}

void StoreBarrier::meet(const std::string& what, std::chrono::milliseconds timeout) {
  if (world_ranks_.size() == 1) return;
  ++round_;
  store_->set(key(std::to_string(rank_)), to_bytes("here"));
  if (store_->add(key("count"), 1) == static_cast<std::int64_t>(world_ranks_.size())) {
    give_verdict(kAllArrived);
  } else {
    try {
      store_->wait({key("verdict")}, timeout);
    } catch (const c10::DistStoreError&) {
      std::ostringstream verdict;
      verdict << std::chrono::duration<double>(timeout).count();
      const auto ranks = absent();
      for (const int rank : ranks) verdict << ' ' << rank;
      give_verdict(ranks.empty() ? kAllArrived : verdict.str());
    }
  }
  const auto verdict = to_text(store_->get(key("verdict")));
  if (verdict != kAllArrived) fail(what, verdict);
  forget_last_round();
}

/// Deletes its keys: everyone in this round has seen the last verdict.
void StoreBarrier::forget_last_round() {
  if (round_ == 0) return;
  --round_;
  store_->deleteKey(key(std::to_string(rank_)));
  if (rank_ == 0)
    for (const char* name : {"count", "verdict"}) store_->deleteKey(key(name));
  ++round_;
}

void StoreBarrier::fail(const std::string& what, const std::string& verdict) {
  std::istringstream text(verdict);
  std::string seconds;
  text >> seconds;
  std::vector<int> ranks;
  for (std::size_t rank = 0; text >> rank;) ranks.push_back(world_ranks_[rank]);
  std::sort(ranks.begin(), ranks.end());

  // Rank 0 may host the store and end on this error: let the others read the verdict first.
  const auto came = static_cast<std::int64_t>(world_ranks_.size() - ranks.size());
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  store_->add(key("read"), 1);
  while (rank_ == 0 && store_->add(key("read"), 0) < came && std::chrono::steady_clock::now() < patience)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto line = what + ": expected " + std::to_string(world_ranks_.size()) + " ranks within " + seconds +
                    " s, " + describe_ranks(ranks) + " did not arrive";
  throw MissingRanks(line, std::move(ranks));
}

}  // namespace ddprun::ddp
