#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <ddprun/flight/flight_recorder.h>
#include <ddprun/flight/watchdog.h>

namespace ddprun::ddp {

/// Not of the program itself, which needs no other rank to explain it: no memory on the GPU, an earlier
/// kernel.
bool is_of_backend(const std::exception_ptr& cause);

/// Turns the error of a failed collective into a c10::DistBackendError with Watchdog::explain()'s message.
std::exception_ptr explained(Watchdog& watchdog, FlightRecorder::Id id, const std::vector<int>& members,
                             const std::exception_ptr& cause);

/// Marks finished collectives of backends that do not report them (NCCL). Otherwise they are marked when the
/// next one begins.
void poll_recordings();

/// Aborts the CPU collectives of all groups that this process has now: a rank whose host is silent closes no
/// connection.
std::function<void()> abort_of_cpu_groups();

/// Wraps a backend: records each collective in flight_recorder() and forwards every call.
///
/// members         the group's ranks, as ranks of the whole job
/// stops_watchdog  its shutdown() stops the watchdog
c10::intrusive_ptr<c10d::Backend> make_recording_backend(c10::intrusive_ptr<c10d::Backend> inner,
                                                         FlightRecorder::Group group,
                                                         std::vector<int> members,
                                                         std::shared_ptr<Watchdog> watchdog,
                                                         bool stops_watchdog);

}  // namespace ddprun::ddp
