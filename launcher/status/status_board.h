#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "launcher/status/progress.h"
#include "launcher/workers/worker_pipes.h"

namespace ddprun::launcher {

/// The status channels of this node's workers: each inherits the writing end of a pipe as DDPRUN_STATUS_FD
/// and writes lines of JSON there (docs/status.md).
class StatusBoard {
 public:
  using Clock = Progress::Clock;

  using OtherTimes = std::function<std::optional<std::vector<OwnTime>>()>;

  /// first_rank     of these workers
  /// others         the times of the other nodes' ranks; nullopt: another ddprun finds the slow ones
  /// on_straggler   called when a rank has been slow for a while
  StatusBoard(boost::asio::io_context& io, int first_rank, OtherTimes others,
              std::function<void(const Straggler&)> on_straggler);

  /// Opens a worker's channel, like WorkerPipes::open; forgets what an earlier worker in its place reported.
  UniqueFd open(std::size_t index);

  /// Reads what the workers have reported so far.
  void read_now() { pipes_.read_now(); }

  /// Looks for slow ranks, about once a second. Call it when another node's times have arrived.
  void look();

  const Progress& progress(std::size_t index) const { return progress_.at(index); }
  std::vector<Straggler> slow_now() const { return watch_.slow_now(); }

 private:
  void take(std::size_t index, std::string_view bytes);

  WorkerPipes pipes_;
  int first_rank_;
  OtherTimes others_;
  std::function<void(const Straggler&)> on_straggler_;
  std::vector<Progress> progress_;
  StragglerWatch watch_;
  Clock::time_point next_look_;
};

}  // namespace ddprun::launcher
