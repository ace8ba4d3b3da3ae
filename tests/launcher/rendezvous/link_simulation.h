#pragma once

#include <boost/asio/io_context.hpp>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/events/job_events.h"
#include "launcher/rendezvous/membership.h"
#include "launcher/rendezvous/node_link.h"
#include "launcher/rendezvous/server.h"
#include "tests/launcher/rendezvous/simulated_hosts.h"

namespace ddprun::test {
using namespace launcher;

/// As the TakeoverSimulation, but nodes and coordinators talk as in ddprun: NodeLink, Connection,
/// CoordinatorServer, messages and frames are ddprun's own, over sockets of SimulatedHosts. What a
/// NodeSupervisor does is modelled, and so are the workers. The promises: a coordinator whose place another
/// has taken begins no round, and its nodes' workers end, as soon as they have noticed; a job succeeds only
/// once all its nodes have; what nothing has disturbed succeeds or fails as its workers do; once nothing
/// disturbs them, all nodes come to one coordinator; and every program ends in time.
class LinkSimulation {
 public:
  LinkSimulation(unsigned seed, std::vector<std::string>* trace);
  ~LinkSimulation();

  /// throws BrokenPromise
  void run();

  int takeovers() const { return static_cast<int>(starters_.size()) - 1; }
  bool succeeded() const { return succeeded_; }

 private:
  using Host = SimulatedHosts::Host;
  using Life = SimulatedHosts::Life;
  using Time = SimulatedHosts::Time;
  using Milliseconds = std::chrono::milliseconds;

  /// A ddprun.
  struct Program {
    Program(const SignalFd& signals, const CoordinatorSettings& settings, std::vector<Endpoint> endpoints)
        : events(io, signals),
          membership(settings, settings.restarts, std::move(endpoints), LoopClock::now()) {}

    boost::asio::io_context io;
    JobEvents events;
    Membership membership;
    std::list<CoordinatorServer> servers;
    std::list<NodeLink> links;
    std::optional<std::pair<Life, int>> running;  ///< whose round its workers are of
    int attempt = 0;                              ///< of its workers
    bool ending = false;                          ///< they are told to end
    bool over = false;                            ///< it says goodbye

    /// As in NodeConnections.
    CoordinatorServer* server() {
      return servers.empty() || servers.back().resigned() ? nullptr : &servers.back();
    }
  };
  struct LastRound {
    int number = -1, nodes = 0;
    std::set<Host> members, succeeded;
  };

  unsigned below(unsigned n) { return n == 0 ? 0 : static_cast<unsigned>(random_() % n); }
  bool chance(unsigned percent) { return below(100) < percent; }
  Milliseconds up_to(Milliseconds time) {
    return Milliseconds(below(static_cast<unsigned>(time.count()) + 1));
  }
  void note(Host host, const std::string& line);

  void disturb();
  void cut_network();
  void leave(Host host);
  void start(Host host);
  void start_again(Host host);
  void kill(Host host, bool with_power);

  void look(Host host);
  NodeLink::Way before_connecting(Host host, const Endpoint& endpoint, std::size_t place, bool asked_all);
  void act(Host host);
  void handle(Host host, const CoordinatorMessage& message);
  bool look_again(Host host, bool hung_up);
  void begin_round(Host host, const Start& start);
  void work(Host host, int attempt);
  void end_workers(Host host);
  void finish(Host host, const std::optional<End>& end = {});
  void check_end(const End& end, Life coordinator) const;
  void check_workers() const;
  void check_progress() const;

  std::mt19937 random_;
  std::vector<std::string>* trace_;
  SimulatedHosts hosts_;
  Time start_, calm_, last_start_;
  CoordinatorSettings settings_;
  std::size_t endpoints_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::vector<Life> starters_;             ///< coordinators that have started rounds, in this order
  std::map<Life, LastRound> last_rounds_;  ///< of each coordinator
  bool disturbed_ = false, failed_ = false, succeeded_ = false;
};

}  // namespace ddprun::test
