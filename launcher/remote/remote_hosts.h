#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include "launcher/cli/options.h"
#include "launcher/events/clock.h"
#include "launcher/events/job_events.h"
#include "launcher/output/console.h"
#include "launcher/workers/guard.h"

namespace ddprun::launcher {

/// The ddpruns on other hosts that this one has started, each through a child of its own that runs ssh. Their
/// output goes to the console. Each ends its part of the job, as after SIGTERM, when its connection ends: so
/// if this ddprun or ssh is killed, nothing is left on the other hosts.
class RemoteHosts {
 public:
  /// How a host's part ended.
  struct Ended {
    std::size_t host = 0;  ///< its index
    bool started = false;  ///< its ddprun has said so
    int exit_code = 0;
    std::string
        reason;  ///< "node2: cannot start ddprun there: ssh: ...", "node2: its ddprun has ended with 2"
  };

  /// environment  ddprun's own, "NAME=value"
  RemoteHosts(boost::asio::io_context& io, Guard& guard, Console& console, const Options& options,
              std::vector<std::string> environment);
  ~RemoteHosts();

  /// Begins to start them, so many at a time, and passes this ddprun's signals on.
  ///
  /// on_end   called for each host, once
  /// throws   LaunchError if there is no ssh
  void start(JobEvents& events, std::function<void(const Ended&)> on_end);

  /// Closes the connections' input: what still runs ends as after SIGTERM, and nothing else starts.
  void hang_up();

  bool all_ended() const;
  /// Whether a ddprun that was started runs.
  bool runs_anywhere() const;

  enum class Patience {
    kNone,           ///< hangs up before it waits
    kWorkersEnd,     ///< hangs up when workers have had their time to end
    kWholeTraining,  ///< never hangs up: the job goes on there
  };

  /// Waits until all have ended and their output is on the console; after hanging up it waits for as long as
  /// workers may take to end. Then, or at the user's third signal, it kills what is left of ssh.
  boost::asio::awaitable<void> finish(JobEvents& events, Patience patience);

  /// For --dry-run: what would be run for each host, and the names of the variables.
  static std::string describe(const Options& options, const std::vector<std::string>& environment);

 private:
  class Connection;

  void start_more();
  void hang_up_starting();
  void on_signal(int signal);
  void take(const Ended& ended);

  boost::asio::io_context& io_;
  Guard& guard_;
  Console& console_;
  const Options& options_;
  std::vector<std::string> environment_;
  std::string ssh_;  ///< its path
  std::function<void(const Ended&)> on_end_;
  std::vector<std::size_t> waiting_;  ///< hosts, the next one at the end
  std::vector<std::shared_ptr<Connection>> connections_;
  Timer look_;
};

/// What the ddprun on another host does with its connection to the one that has started it.
class Starter {
 public:
  /// channel  becomes this object's
  Starter(boost::asio::io_context& io, int channel, const Options& options);

  /// It has ended, and nobody had asked for the job's end: this node's workers end.
  bool lost() const { return lost_; }

 private:
  void watch();
  void take(const std::string& line);
  void end();

  boost::asio::posix::stream_descriptor channel_;
  const Options& options_;
  std::string line_;
  bool ending_ = false;  ///< it has passed on a signal that ends the job
  bool lost_ = false;
};

}  // namespace ddprun::launcher
