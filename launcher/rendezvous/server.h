#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ddprun/common/unique_fd.h>
#include "launcher/rendezvous/connection.h"
#include "launcher/rendezvous/coordinator.h"

namespace ddprun::launcher {

/// The coordinator of a job, listening for its nodes. Has to live as long as the io_context runs.
class CoordinatorServer {
 public:
  /// sockets  that listen
  /// token    empty: none
  CoordinatorServer(boost::asio::io_context& io, CoordinatorSettings settings, std::string token,
                    std::vector<UniqueFd> sockets);
  ~CoordinatorServer();
  CoordinatorServer(const CoordinatorServer&) = delete;
  CoordinatorServer& operator=(const CoordinatorServer&) = delete;

  /// Ends the job for all nodes, if it has not ended.
  void end(int exit_code, const std::string& reason);

  /// True when the job has ended and every node has gone.
  bool all_gone() const { return coordinator_.ended() && connections_.empty(); }
  void on_all_gone(std::function<void()> callback) { on_all_gone_ = std::move(callback); }

 private:
  using Id = Coordinator::NodeId;
  using Acceptor = boost::asio::ip::tcp::acceptor;

  boost::asio::awaitable<void> accept(Acceptor& acceptor);
  boost::asio::awaitable<void> serve(std::shared_ptr<Connection> connection, Id id);
  boost::asio::awaitable<void> keep_time();
  void deliver();

  boost::asio::io_context& io_;
  Coordinator coordinator_;
  std::string token_;
  std::list<Acceptor> acceptors_;
  std::map<Id, std::shared_ptr<Connection>> connections_;  ///< of nodes that have said who they are
  std::map<Id, std::shared_ptr<Connection>> strangers_;    ///< others, in the order of coming
  boost::asio::steady_timer timer_;
  Id next_id_ = 0;
  std::function<void()> on_all_gone_;
};

}  // namespace ddprun::launcher
