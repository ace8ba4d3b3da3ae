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
class ProcessGroup;
}
namespace gloo::transport {
class Device;
}

namespace ddprun::ddp {

/// Gloo's end of the network: a listening socket and a thread, which all groups of a process share.
///
/// interface  a network interface's name; empty: the loopback on one node, where nothing is open to the
///            network, otherwise that of the way to rank 0's host. This host's own name is not looked up: it
///            often has no address, or one of loopback. To be called once the store is there: until then
///            MASTER_ADDR may be a name that nobody knows yet.
/// throws     UsageError if there is no such interface, or no route to MASTER_ADDR
std::shared_ptr<gloo::transport::Device> make_gloo_device(const WorkerEnv& env, const std::string& interface);

/// The interface asked for: of the options, else of GLOO_SOCKET_IFNAME, else none.
/// throws  UsageError naming which, if there is no such interface on this host
std::string checked_interface(const std::string& option);

/// What a group is made of.
struct GroupParts {
  StorePtr store;  ///< of this group alone
  int rank = 0;
  int size = 1;
  std::string name;
  std::vector<int> world_ranks;  ///< of a subgroup: its ranks as the job's; empty: the group is the whole job
  std::chrono::milliseconds timeout{};
  std::shared_ptr<gloo::transport::Device> gloo_device;
  at::Device device = at::kCPU;
  bool one_host = false;       ///< the ranks are all on this host, as far as the variables say
  bool shares_memory = false;  ///< sums of CPU tensors are to go through memory then
  bool nccl = false;           ///< CUDA tensors go over NCCL; else over Gloo, as CPU tensors always do
};

/// Connects the ranks. The one place where a group gets its backends: whoever wraps one does it here.
c10::intrusive_ptr<c10d::ProcessGroup> make_c10d_group(const GroupParts& parts);

}  // namespace ddprun::ddp
