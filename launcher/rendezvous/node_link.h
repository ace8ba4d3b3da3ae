#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/events/clock.h"
#include "launcher/events/job_events.h"
#include "launcher/rendezvous/connection.h"
#include "launcher/rendezvous/endpoint.h"
#include "launcher/rendezvous/lookup.h"
#include "launcher/rendezvous/membership.h"
#include "launcher/rendezvous/message.h"

namespace ddprun::launcher {

/// The coordinator is unreachable, or was lost.
struct CoordinatorLost {
  std::string reason;
  bool hung_up = false;  ///< the connection ended; if false, nothing was heard for too long
};

using CoordinatorEvent = std::variant<CoordinatorMessage, CoordinatorLost>;

/// A node's connection to the coordinator of its job. Queues messages, and pushes a PeerEvent to the job's
/// events for each. Must outlive the run of the io_context.
class NodeLink {
 public:
  /// How to connect to an endpoint.
  struct Way {
    std::vector<boost::asio::ip::tcp::endpoint> instead;  ///< of the endpoint's addresses, if not empty
    bool fail_unless_greeted = false;  ///< give up if something answers but does not greet in time
    std::optional<std::chrono::milliseconds> greeting_timeout;  ///< shorter than the settings'
    std::string join_address;  ///< where other nodes can reach this one, if the settings do not say
  };

  struct Settings {
    /// Tries them in this order, repeatedly, to find the coordinator.
    std::vector<Endpoint> endpoints;
    Join join;
    std::optional<Endpoint> former_coordinator = {};  ///< as in Search: decides former.nobody_listens
    std::string token;
    std::chrono::milliseconds timeout{600'000};          ///< for connecting
    JobEvents::Clock::time_point since;                  ///< start of that time
    std::chrono::milliseconds connect_timeout{5'000};    ///< for an address; after a loss also for a name
    std::chrono::milliseconds greeting_timeout{10'000};  ///< for the coordinator's first bytes
    bool tells_time = false;  ///< the coordinator compares this host's clock with its own
    /// Whoever does not take this node in is not its coordinator: ask the next endpoint.
    bool after_loss = false;
    /// Called before each attempt, perhaps by the constructor, with the endpoint, its place in the order,
    /// whether all have been asked before, and its addresses; throws to give up.
    std::function<Way(const Endpoint& endpoint, std::size_t place, bool asked_all,
                      const std::vector<boost::asio::ip::tcp::endpoint>& addresses)>
        before_connecting = [](auto...) { return Way(); };
    /// Where the coordinator is now, before each attempt, in place of the endpoints (election.h). refused:
    /// the endpoint that it gave last, if nothing listens there. throws LaunchError to give up, else another
    /// std::exception
    std::function<boost::asio::awaitable<Endpoint>(std::optional<Endpoint> refused)> find;
    std::string finder;  ///< whom find asks, for messages
    /// What to tell the coordinator about this node's workers now and then, if it wants to know.
    std::function<std::vector<Summary>()> summaries;
    std::function<void(const DrainAnswer&)> answered;  ///< called with each answer to a Drain
  };

  /// Starts to connect, and retries until the timeout.
  NodeLink(boost::asio::io_context& io, JobEvents& events, Settings settings);
  ~NodeLink();
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  /// The next event, if any. CoordinatorLost is the last one. After an End by a user's signal it means that
  /// the workers of all nodes have ended, or that the coordinator no longer waits for them.
  std::optional<CoordinatorEvent> next();

  /// The next message, which remains queued; null: none, or the coordinator is lost.
  const CoordinatorMessage* peek() const;

  /// Whether a Lead is queued, perhaps behind a Start that it supersedes.
  bool has_lead() const;

  /// Why this node's workers must end, if a queued event says so.
  std::optional<EndedByPeers> end_reason() const;

  /// Ignored while there is no connection.
  void send(const NodeMessage& message);

  /// Has the next beat tell the other nodes about the signs of life of this node's workers; if that can make
  /// workers count as hung, which takes the timeout, sends it at once.
  /// returns  what is known of the whole job's workers
  KnownSigns share_signs(const KnownSigns& own, std::chrono::milliseconds timeout);
  /// This node's workers are in that round.
  void set_running(int round) {
    running_ = round;
    send_beat();
  }

  /// Sends what is queued, then closes and pushes a PeerEvent.
  void finish();
  bool finished() const { return !connection_ || !connection_->is_open(); }

  /// Where the coordinator is, or is being looked for.
  const Endpoint& endpoint() const { return search_.endpoint(); }
  bool was_connected() const { return connection_ != nullptr; }
  bool has_joined() const { return node_timeout_.count() > 0; }
  bool can_ask() const { return has_joined() && !finished() && !job_ended_; }
  bool is_lost() const { return has_joined() && finished() && !job_ended_ && !finished_; }
  const FormerRound& former() const { return settings_.join.former; }
  /// The address that this node gave others to reach it.
  const std::string& join_address() const { return settings_.join.address; }
  /// The coordinator's numeric address as this node reaches it, and the local one of the connection.
  std::string coordinator_address() const { return coordinator_address_; }
  std::string local_address() const { return local_address_; }

 private:
  using Clock = JobEvents::Clock;

  boost::asio::awaitable<void> run();
  boost::asio::awaitable<void> connect();
  boost::asio::awaitable<void> connect_once();
  std::string encoded_join() const;
  boost::asio::awaitable<void> introduce(Connection& connection);
  bool may_be_elsewhere() const;
  boost::asio::awaitable<void> listen();
  boost::asio::awaitable<void> beat();
  boost::asio::awaitable<void> summarise();
  void send_beat();
  void add(CoordinatorEvent news);

  JobEvents& events_;
  boost::asio::io_context& io_;
  Settings settings_;
  Timer timer_, summary_timer_;
  Search search_;
  AddressBook address_book_;
  std::shared_ptr<Connection> connection_;
  std::optional<Endpoint> refused_;           ///< as for Settings::find
  std::optional<CoordinatorMessage> answer_;  ///< to join, until listen() handles it
  std::deque<CoordinatorEvent> news_;
  std::string coordinator_address_, local_address_;
  std::chrono::milliseconds node_timeout_{0};  ///< 0: not yet known
  std::optional<int> summary_ms_, begun_, running_;
  SharedSigns signs_;
  int missed_beats_ = 0;
  bool timed_out_ = false, finished_ = false;
  bool job_ended_ = false;  ///< by a user's signal: the connection stays until all nodes' workers have ended
};

}  // namespace ddprun::launcher
