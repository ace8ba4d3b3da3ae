#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "launcher/rendezvous/coordinator.h"
#include "tests/simulation/broken_promise.h"

namespace ddprun::test {
using namespace launcher;

struct ConnectionLost {};
struct Tick {};
struct HostEnds {};
/// What a coordinator is told.
using Cause = std::variant<NodeMessage, ConnectionLost, Tick, HostEnds>;
using Outgoing = std::vector<std::pair<Coordinator::NodeId, CoordinatorMessage>>;

/// Sees all that goes into a coordinator and comes out of it, and knows what may. Keeps its own, simpler
/// account of the nodes; knows nothing of the coordinator's state.
class JobOracle {
 public:
  using Id = Coordinator::NodeId;

  explicit JobOracle(const CoordinatorSettings& settings) : settings_(settings) {}

  /// To be told after each call. throws BrokenPromise
  void check(Id id, const Cause& cause, const Outgoing& messages, const std::optional<End>& ended);

  int rounds_in_place() const { return rounds_in_place_; }
  int drains() const { return drains_; }

 private:
  enum class Standing { kPresent, kGone };  // kGone: refused, lost or left, or the job is over
  struct Node {
    Standing standing = Standing::kPresent;
    Join join;
    std::size_t order = 0;
    std::optional<int> open_round;  ///< that it was started in and has not ended
    int stopped_round = -1;
    bool ran = false;                    ///< its workers
    bool leaving = false, told = false;  ///< to be drained; and knows it
    int succeeded = -1;                  ///< the last round in which it has
    bool saves = false;                  ///< its user has ended it, and its workers may live
    int told_left = 0;                   ///< in the last Stop
    bool has_left = false;               ///< it is drained, and has confirmed it

    bool stays() const { return !leaving && !saves; }
  };

  void note_input(Id id, const Cause& cause);
  bool have_succeeded() const;
  void check_drain(const Cause& cause, const Outgoing& messages);
  void check_each(Id sender, const Cause& cause, const Outgoing& messages);
  void check_lead(Id id, const Cause& cause, const Outgoing& messages);
  void check_start(const Outgoing& messages);
  void check_in_place(const std::vector<Id>& by_rank);
  void check_order(const std::vector<Id>& by_rank) const;
  void check_stop(Id sender, const Cause& cause, const Outgoing& messages);
  void check_end(Id sender, const Cause& cause, const Outgoing& messages, const std::optional<End>& ended);
  bool present(Id id) const;

  CoordinatorSettings settings_;
  std::map<Id, Node> nodes_;
  std::vector<Id> members_;  ///< of the last round that was started, by rank
  std::set<Id> replacing_;   ///< those that took the place of others in it
  std::set<Id> succeeded_;   ///< in it
  int led_round_ = -1, started_round_ = -1;
  int first_round_ = 0;  ///< the last one that did not begin in place
  Id leader_ = 0;
  bool leads_in_place_ = false;
  int rounds_in_place_ = 0, drains_ = 0;
  int restarts_ = 0;
  bool over_ = false;
};

}  // namespace ddprun::test
