#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/events/job_events.h"
#include "launcher/rendezvous/connection.h"
#include "launcher/rendezvous/endpoint.h"
#include "launcher/rendezvous/message.h"

namespace ddprun::launcher {

/// The coordinator cannot be reached, or no more.
struct CoordinatorLost {
  std::string reason;
};

using CoordinatorNews = std::variant<CoordinatorMessage, CoordinatorLost>;

/// One node's connection to the coordinator of its job, from the first attempt to make it. What comes is kept
/// until it is asked for; each time there is something, the job's events have a PeerNews. Has to live as long
/// as the io_context runs.
class NodeLink {
 public:
  struct Settings {
    Endpoint endpoint;
    Join join;
    std::string token;
    std::chrono::milliseconds timeout{600'000};          ///< for the connection
    std::chrono::milliseconds greeting_timeout{10'000};  ///< for the coordinator's first bytes
    bool must_greet = false;  ///< who answers, but does not greet in time, is in the way: no further attempt
    /// Called with the endpoint's addresses before each attempt; may change these settings. What it throws
    /// ends the attempts.
    std::function<void(const std::vector<boost::asio::ip::tcp::endpoint>& addresses, Settings& settings)>
        before_connecting;
  };

  /// Begins to connect; tries again until the timeout.
  NodeLink(boost::asio::io_context& io, JobEvents& events, Settings settings);
  ~NodeLink();
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  /// What has come next, if anything has. After CoordinatorLost nothing comes.
  std::optional<CoordinatorNews> next();

  /// Why this node's workers are to be ended, if what has come says so.
  std::optional<std::string> wants_end() const;

  /// Nothing is sent before the connection is there, or after it is lost.
  void send(const NodeMessage& message);

  /// Sends what is on its way and closes; there is a PeerNews when that is done.
  void finish();
  bool finished() const { return !connection_ || !connection_->is_open(); }

  /// What this node has told of where others reach it.
  const std::string& join_address() const { return settings_.join.address; }
  /// The coordinator's numeric address as this node reaches it, and the local one of the connection.
  std::string coordinator_address() const { return coordinator_address_; }
  std::string local_address() const { return local_address_; }

 private:
  using Clock = JobEvents::Clock;

  boost::asio::awaitable<void> run();
  boost::asio::awaitable<void> connect();
  boost::asio::awaitable<void> connect_once();
  boost::asio::awaitable<void> listen();
  boost::asio::awaitable<void> beat();
  void add(CoordinatorNews news);

  JobEvents& events_;
  boost::asio::io_context& io_;
  Settings settings_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<Connection> connection_;
  std::deque<CoordinatorNews> news_;
  std::string coordinator_address_, local_address_;
  std::chrono::milliseconds node_timeout_{0};  ///< 0: not known yet
  int unheard_beats_ = 0;
  bool silent_ = false;
};

}  // namespace ddprun::launcher
