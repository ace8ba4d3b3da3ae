#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <ddprun/common/worker_env.h>
#include <ddprun/group/store.h>

namespace c10d {
class Backend;
class ProcessGroup;
}  // namespace c10d
namespace gloo::transport {
class Device;
}

namespace ddprun::ddp {

using GlooDevice = std::shared_ptr<gloo::transport::Device>;

/// Gloo's listening socket and thread, which all groups of a process share. Call it once the store is
/// connected: before, MASTER_ADDR may not resolve. Does not look up this host's own name, which often has
/// only a loopback address or none.
///
/// interface  a network interface's name; empty: loopback on one node, not open to the network, else the
///            interface towards rank 0's host
/// keep       until the process exits, and use it again: a device takes 10 ms to end. Not one of an
/// interface, whose
///            address may change
/// throws     UsageError if there is no such interface or no route to MASTER_ADDR
GlooDevice make_gloo_device(const WorkerEnv& env, const std::string& interface, bool keep);

/// After a group that could not connect: a device may have sockets of its pending connections, or an address
/// that its interface no longer has.
void forget_gloo_devices();

/// The option, else GLOO_SOCKET_IFNAME, else "". throws UsageError if this host has no such interface
std::string checked_interface(const std::string& option);

/// The ingredients of a group.
struct GroupParts {
  StorePtr store;  ///< for this group only
  int rank = 0;
  int size = 1;
  std::string name;
  std::vector<int> world_ranks;  ///< the members' ranks in the whole job
  bool is_whole_job = true;
  std::chrono::milliseconds timeout{}, nccl_timeout{};
  GlooDevice gloo_device;
  at::Device device = at::kCPU;
  bool one_host = false;       ///< all ranks are on this host, according to the variables
  bool shares_memory = false;  ///< then sum CPU tensors through shared memory
  bool nccl = false;           ///< CUDA tensors use NCCL; else Gloo, as CPU tensors always do
  bool recovers = false;       ///< a rank may be lost and replaced
  /// NCCL's own backend; until the group is made, the backend of the group it is split from.
  c10::intrusive_ptr<c10d::Backend> nccl_backend;
};

/// Connects the ranks. The only place that creates or wraps a group's backends.
c10::intrusive_ptr<c10d::ProcessGroup> make_c10d_group(GroupParts& parts);

/// Hands over the NCCL backends of all groups that recover, and forgets them. Abort them from a thread that
/// does not wait for a GPU: their running operations then end with arbitrary numbers.
std::vector<c10::intrusive_ptr<c10d::Backend>> take_nccl_backends();

}  // namespace ddprun::ddp
