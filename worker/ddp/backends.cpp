#include "worker/ddp/backends.h"

#include <net/if.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "common/errors.h"
#include "common/logging.h"
#include "worker/ddp/cuda_backend.h"
#include "worker/ddp/local_address.h"

namespace ddprun::ddp {
namespace {

using c10d::ProcessGroupGloo;

/// Gloo whose collectives can be given up. Its own destructor waits for them: as long as the timeout of a
/// collective that another rank will never join.
class Gloo : public ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  ~Gloo() override {
    if (!idle_within(std::chrono::milliseconds(50))) abort();
  }

  void abort() override {
    for (auto& context : contexts_) context->closeConnections();
  }

 private:
  /// A collective that has been waited for may be on its worker thread for another moment.
  bool idle_within(std::chrono::milliseconds patience) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      const std::lock_guard lock(workMutex_);
      const auto is_done = [](const auto& work) { return !work; };
      if (workQueue_.empty() && std::all_of(workInProgress_.begin(), workInProgress_.end(), is_done))
        return true;
      if (std::chrono::steady_clock::now() > deadline) return false;
    }
  }
};

}  // namespace

std::string checked_interface(const std::string& option) {
  const char* variable = std::getenv("GLOO_SOCKET_IFNAME");
  const std::string name = !option.empty() ? option : variable != nullptr ? variable : "";
  if (!name.empty() && ::if_nametoindex(name.c_str()) == 0)
    throw UsageError((option.empty() ? "GLOO_SOCKET_IFNAME" : "interface") +
                     std::string(": expected a network interface of this host, got '") + name + "'");
  return name;
}

std::shared_ptr<gloo::transport::Device> make_gloo_device(const WorkerEnv& env,
                                                          const std::string& interface) {
  if (!interface.empty()) return ProcessGroupGloo::createDeviceForInterface(interface);
  if (env.world_size == 1 || is_loopback(env.master_addr))
    return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  const std::string address = local_address_towards(env.master_addr);
  if (is_loopback(address) && env.world_size > env.local_world_size)
    log_warning("MASTER_ADDR: '" + env.master_addr + "' is " + address +
                " on this host, which other hosts cannot reach; give an address, or name the network "
                "interface in GLOO_SOCKET_IFNAME");
  return ProcessGroupGloo::createDeviceForHostname(address);
}

c10::intrusive_ptr<c10d::ProcessGroup> make_c10d_group(const GroupParts& parts) {
  using Type = c10d::ProcessGroup::BackendType;
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  auto group = c10::make_intrusive<c10d::ProcessGroup>(parts.store, parts.rank, parts.size);
  auto options = ProcessGroupGloo::Options::create(parts.timeout);
  options->devices.push_back(parts.gloo_device);
  const BackendPtr gloo = c10::make_intrusive<Gloo>(parts.store, parts.rank, parts.size, options);
  group->setBackend(at::kCPU, Type::GLOO, gloo);
  if (parts.device.is_cuda() && !parts.nccl) group->setBackend(at::kCUDA, Type::GLOO, gloo);
  if (parts.nccl) {
    const BackendPtr nccl =
        cuda_plugin().make_nccl(parts.store, parts.rank, parts.size, parts.timeout, parts.device);
    group->setBackend(at::kCUDA, Type::NCCL, nccl);
  }
  group->setDefaultBackend(Type::GLOO);
  group->setGroupName(parts.name);
  return group;
}

}  // namespace ddprun::ddp
