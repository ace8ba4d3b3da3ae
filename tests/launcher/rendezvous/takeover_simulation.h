#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/rendezvous/coordinator.h"
#include "launcher/rendezvous/membership.h"
#include "tests/launcher/rendezvous/cut_network.h"
#include "tests/launcher/rendezvous/job_oracle.h"
#include "tests/simulation/event.h"

namespace ddprun::test {
using namespace launcher;

/// An elastic job, or one of a fixed size with a spare, of 2 to 6 hosts, of which some may have the
/// coordinator one after the other, over a network that is cut (in two halves, around one host, between two,
/// in one direction only) and mended in one go or halfway first, while hosts fall out, programs die, start
/// again and pause, and users end the coordinator's node; the hosts' clocks run at different speeds; all of
/// it from one seed. The promises: once a
/// coordinator's round has begun, one that was before it begins none, but where it has just woken: that one
/// ends, with its nodes' workers, as soon as it has noticed; no node is sent away before it has succeeded,
/// but where one that has started again took its place; every exit code has its cause; once nothing disturbs
/// them, nodes that can go on do so long before
/// --join-timeout; and every program ends in time.
class TakeoverSimulation {
 public:
  /// What the promises about times allow for.
  static constexpr double kSlowestClock = 0.8;

  /// slowest_clock  the least speed of a host's clock; the fastest ones have 1
  TakeoverSimulation(unsigned seed, std::vector<std::string>* trace, double slowest_clock = kSlowestClock);

  /// throws BrokenPromise
  void run();

  int takeovers() const { return static_cast<int>(starters_.size()) - 1; }
  bool succeeded() const { return succeeded_; }
  int drains() const { return drains_; }  ///< nodes that have left

 private:
  using Clock = Coordinator::Clock;
  using Time = Coordinator::Time;
  using Milliseconds = std::chrono::milliseconds;
  using Host = std::size_t;
  using Life = std::pair<Host, int>;  ///< of a host's programs, one after the other

  /// A TCP connection of a host to a coordinator. What is sent while the network is broken comes later.
  struct Connection {
    Host node, coordinator;
    Coordinator::NodeId id;
    int node_life, coordinator_life;
    bool node_open = true, coordinator_open = true;
    std::deque<std::optional<NodeMessage>> to_coordinator;  ///< none: the connection's end
    std::deque<std::optional<CoordinatorMessage>> to_node;
  };
  struct Program {
    bool alive = true, powered = true, over = false;
    int life = 0;
    Time paused_until;
    std::optional<Coordinator> coordinator;
    int term = 0;                           ///< of the coordinators here
    std::optional<std::size_t> connection;  ///< of connections_
    std::optional<Membership> membership;
    std::optional<Search> search;
    FormerRound told;  ///< to a coordinator, as in the NodeLink
    bool joined = false;
    bool leaves = false;   ///< its user has ended it: it ends once it has handed over
    bool refused = false;  ///< by a coordinator that took over
    bool drained = false;
    bool succeeded = false;
    std::optional<std::pair<Life, int>> running;  ///< whose round its workers are of
    int missed_beats = 0;
  };
  struct LastRound {
    int number = -1;
    int first = 0;  ///< the last for which all workers started anew
    std::set<Host> members;
    std::map<Host, int> succeeded;  ///< in which round
    bool failed = false;            ///< it or one before
  };
  unsigned below(unsigned n) { return n == 0 ? 0 : static_cast<unsigned>(random_() % n); }
  bool chance(unsigned percent) { return below(100) < percent; }
  Milliseconds up_to(unsigned ms) { return Milliseconds(below(ms + 1)); }
  void after(Clock::duration delay, std::function<void()> action);
  /// What the host's program does then by its clock; later if it is paused, never if it has ended.
  void on(Host host, Milliseconds delay, std::function<void()> action);
  void act(Life life, const std::function<void()>& action);
  /// The time by the host's clock.
  Time clock(Host host) const {
    return start_ + std::chrono::duration_cast<Clock::duration>((now_ - start_) * speeds_[host]);
  }
  /// How long this lasts at most by a clock that is not too slow.
  static Clock::duration by_slowest(Milliseconds time) {
    return std::chrono::duration_cast<Clock::duration>(time / kSlowestClock);
  }
  void note(Host host, const std::string& line);

  void disturb();
  void cut_network();
  void announce_halfway(Host coordinator);
  void kill(Host host, bool with_power);
  void leave(Host host);
  void drain(Host host);
  void start_again(Host host);
  bool carries(Host from, Host to) const;
  bool reach(Host a, Host b) const { return carries(a, b) && carries(b, a); }
  bool listens(Host host) const;
  std::string id_of(Host host) const;
  Life life_of(Host host) const { return {host, hosts_[host].life}; }
  bool has_started(Life life) const { return std::count(starters_.begin(), starters_.end(), life) > 0; }

  void begin(Host host);
  void look(Host host);
  void ask(Host host);
  void ask_next(Host host, Search::Answer answer, Milliseconds delay);
  void connect(Host host, Host to);
  void beat(Host host, std::size_t connection);
  void carry(std::size_t connection, bool to_node);
  void send(std::size_t connection, std::optional<NodeMessage> message);
  void hear(Host host, std::size_t connection, const CoordinatorMessage& message);
  void lose(Host host, std::size_t connection, bool hung_up);
  void refuse(Host host, std::size_t connection, const std::string& reason);
  void finish(Host host, const std::optional<End>& end = {});
  void leave_drained(Host host, std::size_t connection, int round);
  void tick(Host host, int term);
  void deliver(Host host);
  void hang_up(Host host);
  void note_start(Host coordinator, const Start& start);
  void note_round(Host host, Life coordinator, int nodes);
  static bool have_succeeded(const LastRound& last);
  void check_end(Host coordinator, const End& end) const;
  void check_workers() const;
  void check_progress() const;

  std::mt19937 random_, drain_random_;
  std::vector<std::string>* trace_;
  Time now_ = Time() + std::chrono::hours(1), start_ = now_, calm_, last_start_;
  CoordinatorSettings settings_;
  std::vector<Program> hosts_;
  std::size_t endpoints_;
  CutNetwork network_;
  std::vector<double> speeds_;  ///< of the hosts' clocks
  std::deque<Connection> connections_;
  std::priority_queue<Event> events_;
  std::size_t next_order_ = 0;
  std::vector<Life> starters_;             ///< coordinators that have started rounds, in this order
  std::map<Life, LastRound> last_rounds_;  ///< of each coordinator
  bool disturbed_ = false;
  bool succeeded_ = false;
  int drains_ = 0;
};

}  // namespace ddprun::test
