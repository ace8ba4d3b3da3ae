#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include <ddprun/common/files.h>
#include "launcher/workers/guard.h"
#include "launcher/workers/process.h"

namespace ddprun::launcher {

/// Processes that have loaded the program and wait until one of them is to be a worker (--standby).
class Standbys {
 public:
  Standbys(boost::asio::io_context& io, Guard& guard) : guard_(guard), timer_(io) {}
  ~Standbys() { end(); }

  /// Keeps so many of them from now on. They start one by one, a second apart: beside a worker that starts
  /// they would cost it time.
  ///
  /// process   as a worker's, without descriptors
  /// may_start whether the program is known to wait; asked before each start
  void keep(int count, ProcessSpec process, std::function<bool()> may_start);

  /// Makes one of them this worker, or starts it anew if none can be.
  std::variant<Process, StartFailure> start(const ProcessSpec& worker);

  /// Ends them all.
  void end();

 private:
  struct Standby {
    Process process;
    UniqueFd channel;
  };

  void fill();
  void start_one();
  bool become(const Standby& standby, const ProcessSpec& worker) const;
  void drop(const Standby& standby);

  Guard& guard_;
  boost::asio::steady_timer timer_;
  std::size_t count_ = 0;
  ProcessSpec process_;
  std::function<bool()> may_start_;
  std::vector<Standby> waiting_;
};

}  // namespace ddprun::launcher
