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

/// The backend with every collective recorded in flight_recorder(), and with errors that say which rank did
/// not come: what a failed collective throws is a c10::DistBackendError whose message names the collective
/// and the ranks (Watchdog). To be given to ProcessGroup::setBackend in the backend's place.
///
/// A group of one is returned as it is: it waits for nobody.
///
/// store         where the ranks leave word for each other; used through a connection of its own
/// group_name    the same on all ranks of the group
/// global_ranks  of a subgroup: its ranks as numbers of the whole job. Empty: the group is the whole job; its
///               watchdog serves the subgroups made later, of whichever job: one job at a time has subgroups
c10::intrusive_ptr<c10d::Backend> record_collectives(c10::intrusive_ptr<c10d::Backend> backend,
                                                     const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::string& group_name = "world",
                                                     std::vector<int> global_ranks = {});

/// Makes a collective of calls that other ranks answer, such as sends and receives: recorded as one, under
/// that name, with one number on all ranks that all make it.
///
/// device  whose backend it is
/// op      a literal
/// tensor  what is told of it
/// start   makes the calls with the backend that it is given, which are not recorded each; returns a work
///         whose wait() waits for all of them
c10::intrusive_ptr<c10d::Work> record_as_one(
    c10d::ProcessGroup& group, c10::DeviceType device, const char* op, const at::Tensor& tensor,
    const std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>& start);

/// The coming all-reduces of these sizes, in this order, are recorded as the buckets of one backward. Does
/// nothing for a group that is not recorded.
void expect_buckets(c10d::ProcessGroup& group, const std::vector<std::int64_t>& bucket_bytes);

/// The watchdog of the job that this process is in; nullptr if there is none.
std::shared_ptr<Watchdog> current_watchdog();

/// Leaves word for the other ranks that this one ends with that failure: their errors will say so. Takes a
/// second at most. For a program's last catch.
void announce_failure(const std::string& message);

/// The exception for a failure outside of any call of ours, on a thread of the backend's: Gloo ends the
/// process there (std::terminate) when a peer sends more than this rank has room for. For a program's own
/// terminate handler:
///   std::set_terminate([] { end(explained_failure(std::current_exception())); });
/// Names the collective and the ranks if one is pending; else the exception itself.
std::exception_ptr explained_failure(const std::exception_ptr& cause);

/// Writes this rank's ring and has the other ranks write theirs; this rank's only where there is no watchdog.
void dump_flight(const std::string& reason);

}  // namespace ddprun::ddp
