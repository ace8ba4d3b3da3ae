#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace at {
class Tensor;
}
namespace c10d {
class Backend;
class ProcessGroup;
class Store;
class Work;
}  // namespace c10d

namespace ddprun::ddp {

class Watchdog;

/// While one lives, LibTorch logs no warnings. For a store that is gone it would print the stack, and for
/// each wait that ends without its key two lines.
class Quietly {
 public:
  Quietly();
  ~Quietly();
  Quietly(const Quietly&) = delete;
  Quietly& operator=(const Quietly&) = delete;
};

/// Wraps a backend, for ProcessGroup::setBackend: records every collective in flight_recorder(), and turns
/// its errors into c10::DistBackendErrors that name the collective and the missing ranks (Watchdog). Returns
/// a one-rank group's backend unchanged.
///
/// store         where the ranks leave messages for each other; gets a separate connection
/// group_name    the same on all ranks of the group
/// global_ranks  a subgroup's ranks in the whole job; empty for the whole job, whose watchdog also serves
///               subgroups made later: only one job at a time can have subgroups
c10::intrusive_ptr<c10d::Backend> record_collectives(c10::intrusive_ptr<c10d::Backend> backend,
                                                     const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::string& group_name = "world",
                                                     std::vector<int> global_ranks = {});

/// Records the sends and receives of one collective, which every rank must make, as one call.
///
/// device  whose backend to use
/// op      a literal
/// tensor  describes the call
/// start   makes the calls on the backend passed to it; returns a work whose wait() waits for all of them
c10::intrusive_ptr<c10d::Work> record_as_one(
    c10d::ProcessGroup& group, c10::DeviceType device, const char* op, const at::Tensor& tensor,
    const std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>& start);

/// Starts the last collective of a whole job's group: once all ranks are in it, it ends. Ranks that wait
/// in another collective instead learn that this rank has finished.
c10::intrusive_ptr<c10d::Work> record_close(c10d::ProcessGroup& group);

/// Records a barrier that goes through the store as a collective.
///
/// wait    returns once all ranks are there, or false once is_in_vain() is true
/// throws  c10::DistBackendError that names the ranks that never come, after false; what wait() throws
void record_barrier(c10d::ProcessGroup& group,
                    const std::function<bool(const std::function<bool()>& is_in_vain)>& wait);

/// Records the next all-reduces of these sizes, in this order, as the buckets of one backward. Ignored for a
/// group without recording.
void expect_buckets(c10d::ProcessGroup& group, const std::vector<std::int64_t>& bucket_bytes);

/// While it lives, GPU collectives are not recorded: during the capture of a CUDA graph they do not run yet.
class NotRecorded {
 public:
  NotRecorded();
  ~NotRecorded();
  NotRecorded(const NotRecorded&) = delete;
  NotRecorded& operator=(const NotRecorded&) = delete;
};

/// Marks finished collectives of backends that do not report them (NCCL). Otherwise they are marked when the
/// next one begins.
void poll_recordings();

/// Aborts the CPU collectives of all groups that this process has now: a rank whose host is silent closes no
/// connection.
std::function<void()> abort_of_cpu_groups();

/// Makes the collectives fail in which this process waits. One over NCCL ends the process, like NCCL's own
/// watchdog: nothing tells the program that what it computes next is wrong.
void end_waiting();

/// This process's watchdog; nullptr outside a job.
std::shared_ptr<Watchdog> current_watchdog();

/// Tells the other ranks why this one ends, so that their errors say so. Takes at most a second. Call it from
/// a program's last catch.
void announce_failure(const std::string& message);

/// For a program's terminate handler: Gloo ends the process on its own thread (std::terminate) when a peer
/// sends more than this rank expects. Turns a backend's error into one that names the pending collective and
/// the ranks; returns any other error, or one without such a collective, unchanged.
///   std::set_terminate([] { end(explained_failure(std::current_exception())); });
std::exception_ptr explained_failure(const std::exception_ptr& cause);

/// Writes the rings of all ranks; only this rank's without a watchdog.
void dump_flight(const std::string& reason);

// For record_collectives() and explained_failure() themselves.

/// members         the group's ranks, as ranks of the whole job
/// stops_watchdog  its shutdown() stops the watchdog
c10::intrusive_ptr<c10d::Backend> make_recording_backend(c10::intrusive_ptr<c10d::Backend> inner,
                                                         std::size_t group, std::vector<int> members,
                                                         std::shared_ptr<Watchdog> watchdog,
                                                         bool stops_watchdog);

/// False for an error of the program itself, which needs no other rank to explain it: no memory on the GPU,
/// an earlier kernel.
bool is_of_backend(const std::exception_ptr& cause);

/// Turns the error of a failed collective into a c10::DistBackendError with Watchdog::explain()'s message.
std::exception_ptr explained(Watchdog& watchdog, std::uint64_t id, const std::vector<int>& members,
                             const std::exception_ptr& cause);

}  // namespace ddprun::ddp
