#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "launcher/rendezvous/coordinator.h"
#include "tests/launcher/rendezvous/job_oracle.h"
#include "tests/simulation/event.h"

namespace ddprun::test {
using namespace launcher;

/// One job on made-up nodes over a made-up network, all of it from one seed: nodes come, fail, fall silent,
/// crash, leave and talk nonsense, until the disturbances stop. Each connection keeps the order of its
/// messages; otherwise they overtake each other.
class JobSimulation {
 public:
  /// trace   gets a line for each thing that happens; may be null
  JobSimulation(unsigned seed, std::vector<std::string>* trace);

  /// Until nothing happens any more. throws BrokenPromise, also if the job does not end in time
  void run();

  const End& end() const { return *coordinator_.ended(); }
  int rounds() const { return last_round_ + 1; }
  int rounds_in_place() const { return oracle_.rounds_in_place(); }
  int drains() const { return oracle_.drains(); }

 private:
  using Clock = Coordinator::Clock;
  using Time = Coordinator::Time;
  using Id = Coordinator::NodeId;
  using Milliseconds = std::chrono::milliseconds;

  struct Node {
    Join join;
    std::string address;
    bool alive = true;    ///< and so is its connection
    bool silent = false;  ///< nothing of it comes through any more
    bool honest = true;
    bool lacks_worker = false;    ///< that is to be replaced in the next round in place
    std::optional<int> running;   ///< the round that its workers are of
    std::optional<int> waits_in;  ///< the round in which it waits for the disk with its program
    bool optional =
        false;  ///< its workers need not succeed: it is drained, or may have come too late for one that is
    bool succeeded = false;                             ///< its workers
    int last_ended = -1;                                ///< the last round whose workers it has ended
    Time last_to_node, last_from_node;                  ///< when the youngest message on its way arrives
    std::deque<std::optional<NodeMessage>> on_its_way;  ///< to the coordinator; none: the connection's end
  };
  unsigned below(unsigned n) { return n == 0 ? 0 : static_cast<unsigned>(random_() % n); }
  bool chance(unsigned percent) { return below(100) < percent; }
  Milliseconds up_to(unsigned ms) { return Milliseconds(below(ms + 1)); }
  void at(Time time, std::function<void()> action);
  void after(Milliseconds delay, std::function<void()> action) { at(now_ + delay, std::move(action)); }

  CoordinatorSettings random_settings();
  void plan();
  void disturb();
  void drain();
  void add_node(std::optional<int> node_rank);
  void talk_nonsense(Id id);
  NodeMessage random_message();
  AttemptEnd random_failure();
  Id random_node();

  void say(Id id, const NodeMessage& message);
  void hang_up(Id id);
  void put_on_its_way(Id id, std::optional<NodeMessage> message);
  void deliver(Id id);
  void beat(Id id);
  void hear(Id id, const CoordinatorMessage& message);
  void wait_for_disk(Id id, int round);
  void start_workers(Id id, int round);
  void fail_workers(Id id, int round);
  void decline(Id id, int round);
  void end_workers(Id id, int round);

  void coordinate(Id id, const Cause& cause);
  void tick();
  void note(Id id, const std::string& line);

  std::mt19937 random_;
  std::vector<std::string>* trace_;
  unsigned failures_;    ///< of a node's rounds, in percent
  unsigned in_place_;    ///< of the failures: after which the other workers could go on
  unsigned unable_;      ///< of the nodes: to continue in a round in place, in percent
  unsigned dead_disks_;  ///< of the starts: the program's disk does not answer, in percent
  unsigned longest_round_ms_;
  Time now_ = Time() + std::chrono::hours(1), start_ = now_;
  Time calm_;           ///< from then on nothing goes wrong
  Time stalled_until_;  ///< the coordinator does nothing until then
  Milliseconds lateness_{0};
  CoordinatorSettings settings_;
  Coordinator coordinator_;
  JobOracle oracle_;
  std::priority_queue<Event> events_;
  std::size_t next_order_ = 0;
  std::map<Id, Node> nodes_;
  Id next_id_ = 1;
  int last_round_ = -1;
};

}  // namespace ddprun::test
