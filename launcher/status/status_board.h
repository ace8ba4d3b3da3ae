#pragma once

#include <functional>
#include <optional>
#include <utility>
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
              std::function<void(const Straggler&)> on_straggler)
      : pipes_(io, [this](std::size_t index, std::string_view bytes) { take(index, bytes); }),
        first_rank_(first_rank),
        others_(std::move(others)),
        on_straggler_(std::move(on_straggler)) {}

  /// Opens a worker's channel, like WorkerPipes::open; forgets what an earlier worker in its place reported.
  UniqueFd open(std::size_t index) {
    if (progress_.size() <= index) progress_.resize(index + 1);
    progress_[index] = {};
    return pipes_.open(index);
  }

  /// Reads what the workers have reported so far.
  void read_now() { pipes_.read_now(); }

  /// Looks for slow ranks, about once a second. Call it when another node's times have arrived.
  void look() {
    const auto now = Clock::now();
    if (now < next_look_) return;
    next_look_ = now + kStragglerLook;
    auto others = others_();
    if (!others) return;
    std::vector<OwnTime> times = std::move(*others);
    for (std::size_t i = 0; i < progress_.size(); ++i) {
      const auto pace = progress_[i].pace();
      if (!pace || !pace->compute || pace->steps < kLeastSteps) continue;
      times.push_back({first_rank_ + static_cast<int>(i), *progress_[i].latest().step, *pace->compute,
                       pace->data.value_or(0)});
    }
    for (const Straggler& straggler : watch_.look(times)) on_straggler_(straggler);
  }

  const Progress& progress(std::size_t index) const { return progress_.at(index); }
  std::vector<Straggler> slow_now() const { return watch_.slow_now(); }

 private:
  static constexpr std::chrono::seconds kStragglerLook{1};

  void take(std::size_t index, std::string_view bytes) {
    progress_[index].add(bytes, Clock::now());
    look();
  }

  WorkerPipes pipes_;
  int first_rank_;
  OtherTimes others_;
  std::function<void(const Straggler&)> on_straggler_;
  std::vector<Progress> progress_;
  StragglerWatch watch_;
  Clock::time_point next_look_;
};

}  // namespace ddprun::launcher
