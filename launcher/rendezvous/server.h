#pragma once

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/common/files.h>
#include "launcher/events/clock.h"
#include "launcher/rendezvous/connection.h"
#include "launcher/rendezvous/coordinator.h"

namespace ddprun::launcher {

/// Keeps strangers from filling the log: passes the first few lines, then one per pause, which says how many
/// were left out.
class LineLimit {
 public:
  using Time = std::chrono::steady_clock::time_point;

  static constexpr int kFirst = 5;
  static constexpr std::chrono::seconds kPause{5};

  /// The line to log, if it may be logged now.
  std::optional<std::string> pass(const std::string& line, Time now) {
    if (!use_turn(now)) {
      ++left_out_;
      return {};
    }
    return line + (left_out_ == 0 ? "" : "; before it " + rest());
  }

  /// What to log about lines left out that none has followed, once there is something to say.
  std::optional<std::string> pass_rest(Time now) {
    if (left_out_ == 0 || !use_turn(now)) return {};
    return rest();
  }

 private:
  bool use_turn(Time now) {
    const Time next = std::max(next_, now);
    if (next > now + (kFirst - 1) * kPause) return false;
    next_ = next + kPause;
    return true;
  }
  std::string rest() { return std::to_string(std::exchange(left_out_, 0)) + " such lines were left out"; }

  Time next_;  ///< when the next turn would come if each had waited for its pause
  std::size_t left_out_ = 0;
};

/// The coordinator of a job, listening for its nodes. Must outlive the run of the io_context.
class CoordinatorServer {
 public:
  using Listen = std::function<std::vector<UniqueFd>()>;

  /// token    empty: none
  /// sockets  listening
  /// listen   listens again when nodes are missing, if the workers use the port while all are connected;
  ///          throws LaunchError
  CoordinatorServer(boost::asio::io_context& io, CoordinatorSettings settings, std::string token,
                    std::vector<UniqueFd> sockets, Listen listen = {});
  ~CoordinatorServer();
  CoordinatorServer(const CoordinatorServer&) = delete;
  CoordinatorServer& operator=(const CoordinatorServer&) = delete;

  /// Ends the job on all nodes. Ignored if it has ended.
  void end(int exit_code, const std::string& reason, bool dump_stacks = false,
           std::optional<int> user_signal = {});

  /// As Coordinator::hand_over().
  bool hand_over(const std::string& id, int signal, const std::string& reason);

  bool ended() const { return coordinator_.ended().has_value(); }
  /// How; null: it has not.
  const End* how_ended() const { return ended() ? &*coordinator_.ended() : nullptr; }
  bool has_unfit_nodes() const { return coordinator_.has_unfit_nodes(); }
  /// It has closed its port and connections because another coordinator replaces it.
  bool resigned() const { return coordinator_.resigned(); }
  /// True once the job has ended, or this has resigned, and every node has disconnected.
  bool all_gone() const { return (ended() || resigned()) && connections_.empty(); }

  // For a coordinator that etcd has elected: as the Coordinator's.
  std::optional<RoundRecord> take_record() { return coordinator_.take_record(); }
  void recorded(int round);
  void set_reaches_etcd(bool reaches) { coordinator_.set_reaches_etcd(reaches); }
  bool runs() const { return coordinator_.runs(); }
  void resign();
  /// Called after each change.
  void on_change(std::function<void()> callback) { on_change_ = std::move(callback); }

  /// Called when no node is connected any more, and from the job's end on after each change.
  void on_all_gone(std::function<void()> callback) { on_all_gone_ = std::move(callback); }
  /// Called for a node that is being drained, with what becomes of its ranks.
  void on_drain(std::function<void(const std::string& node, const std::string& text)> callback) {
    on_drain_ = std::move(callback);
  }
  /// Called with the summaries of joined nodes.
  void on_summary(std::function<void(const std::string& node, const Summary& summary)> callback) {
    on_summary_ = std::move(callback);
  }

 private:
  using Id = Coordinator::NodeId;
  using Acceptor = boost::asio::ip::tcp::acceptor;

  boost::asio::awaitable<void> accept(Acceptor& acceptor);
  boost::asio::awaitable<void> serve(std::shared_ptr<Connection> connection, Id id);
  boost::asio::awaitable<void> keep_time();
  void deliver();
  void warn(const std::string& line);
  void listen(std::vector<UniqueFd> sockets);
  void open_or_close_port();

  boost::asio::io_context& io_;
  Coordinator coordinator_;
  std::string token_;
  Listen listen_again_;
  bool listening_ = false;
  std::list<Acceptor> acceptors_;  ///< closed ones stay, because accept() still uses them
  std::map<Id, std::shared_ptr<Connection>> connections_;  ///< of nodes that have sent Join
  std::map<Id, std::shared_ptr<Connection>> strangers_;    ///< others, oldest first
  LineLimit limit_;                                        ///< of lines that anyone can cause
  Timer timer_;
  Id next_id_ = 0;
  std::function<void()> on_all_gone_, on_change_;
  std::function<void(const std::string&, const Summary&)> on_summary_;
  std::function<void(const std::string&, const std::string&)> on_drain_;
};

}  // namespace ddprun::launcher
