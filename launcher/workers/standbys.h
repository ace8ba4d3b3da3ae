#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include <ddprun/common/files.h>
#include "launcher/events/timer.h"
#include "launcher/workers/guard.h"
#include "launcher/workers/process.h"

namespace ddprun::launcher {

/// Processes that have loaded the program and wait to become a worker (--standby).
class Standbys {
 public:
  Standbys(boost::asio::io_context& io, Guard& guard) : guard_(guard), timer_(io) {}
  ~Standbys() { end(); }

  /// Keeps this many of them from now on. They start one by one, a second apart: next to a starting worker
  /// they would slow it down. If one ends early, that pause doubles.
  ///
  /// process    as for a worker, without descriptors
  /// may_start  whether the program is known to stand by; asked before each start
  void keep(int count, ProcessSpec process, std::function<bool()> may_start);

  /// Turns one of them into this worker, or starts a new process if none is available.
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
  void lose(const Standby& standby);
  void drop(const Standby& standby);

  Guard& guard_;
  Timer timer_;
  std::size_t count_ = 0;
  ProcessSpec process_;
  std::function<bool()> may_start_;
  std::vector<Standby> waiting_;
  std::chrono::seconds apart_{1};
  const std::shared_ptr<int> token_ = std::make_shared<int>();  ///< for the timer's handler: we still exist
};

}  // namespace ddprun::launcher
