#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <ddprun/flight/flight_recorder.h>
#include <ddprun/flight/watchdog.h>

namespace ddprun::ddp {

/// Turns the error of a failed collective into a c10::DistBackendError with Watchdog::explain()'s message.
std::exception_ptr explained(Watchdog& watchdog, FlightRecorder::Id id, const std::vector<int>& members,
                             const std::exception_ptr& cause);

/// What the works of one recorded group share.
class Recording {
 public:
  /// members       the group's ranks, as ranks of the whole job
  /// futures_tell  a work's future completes with its collective: true of Gloo, not of NCCL
  Recording(FlightRecorder& recorder, FlightRecorder::Group group, std::vector<int> members,
            std::shared_ptr<Watchdog> watchdog, bool futures_tell)
      : recorder(recorder),
        group(group),
        members(std::move(members)),
        watchdog(std::move(watchdog)),
        futures_tell(futures_tell) {}

  std::exception_ptr explain(FlightRecorder::Id id, const std::exception_ptr& cause) const {
    return explained(*watchdog, id, members, cause);
  }

  /// Polls a work that does not report its completion, whenever another one begins.
  void poll(FlightRecorder::Id id, const c10::intrusive_ptr<c10d::Work>& work);

  FlightRecorder& recorder;
  const FlightRecorder::Group group;
  const std::vector<int> members;
  const std::shared_ptr<Watchdog> watchdog;
  const bool futures_tell;

 private:
  std::mutex mutex_;
  std::deque<std::pair<FlightRecorder::Id, c10::intrusive_ptr<c10d::Work>>> pending_;
};

/// Wraps a backend: records each collective and forwards every call.
///
/// stops_watchdog  its shutdown() stops the watchdog
c10::intrusive_ptr<c10d::Backend> make_recording_backend(c10::intrusive_ptr<c10d::Backend> inner,
                                                         std::shared_ptr<Recording> recording,
                                                         bool stops_watchdog);

}  // namespace ddprun::ddp
