#include <ddprun/group/backends.h>

#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/flight/flight_recorder.h>
#include <ddprun/flight/record_collectives.h>
#include <ddprun/group/cuda_backend.h>
#include <ddprun/group/local_address.h>
#include <ddprun/group/shared_sum.h>

namespace ddprun::ddp {
namespace {

using c10d::ProcessGroupGloo;

using Clock = std::chrono::steady_clock;
using Sockets = std::map<int, ino_t>;  // by descriptor

/// This process's TCP connections.
Sockets open_connections() {
  Sockets found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    struct stat status {};
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && peer.ss_family != AF_UNIX &&
        ::fstat(fd, &status) == 0)
      found[fd] = status.st_ino;
  }
  return found;
}

/// False once this end has closed it.
bool is_same(int fd, ino_t inode) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && status.st_ino == inode;
}

/// False once either end has closed it.
bool is_open(int fd, ino_t inode) {
  tcp_info info{};
  socklen_t size = sizeof info;
  return is_same(fd, inode) && ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
         info.tcpi_state == TCP_ESTABLISHED;
}

std::mutex live_nccl_mutex;
// Not destroyed before being aborted, since that would wait for the GPU; and never at process exit.
auto& live_nccl = *new std::vector<c10::intrusive_ptr<c10d::Backend>>;

/// Gloo whose collectives can be aborted. Its own destructor waits until they time out, it has no call to
/// cancel them (closing its connections wakes nobody on this side), and it does not expose its sockets. So
/// this takes the connections that appeared while it connected, and shuts them down: both ends then see the
/// other close them.
class Gloo : public ProcessGroupGloo {
 public:
  Gloo(const StorePtr& store, int rank, int size, c10::intrusive_ptr<Options> options)
      : Gloo(store, rank, size, std::move(options), open_connections()) {}
  ~Gloo() override {
    if (!idle_within(std::chrono::milliseconds(50))) abort();
  }

  /// From now on, sums use this memory.
  void use(std::unique_ptr<SharedMemory> memory) {
    local_ = std::make_unique<LocalAllReduce>(std::move(memory), getRank(), getSize(), getOptions()->timeout);
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    const auto number = ++all_reduces_;
    if (local_ && LocalAllReduce::suits(tensors, options)) return local_->run(tensors, options, number);
    return ProcessGroupGloo::allreduce(tensors, options);
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    if (local_) local_->drain();  // Gloo's own waits for Gloo's running operations
    return ProcessGroupGloo::barrier(options);
  }

  /// COMM_ERROR once the connection to another rank is closed: it has ended.
  c10d::ErrorType getError() override {
    const bool all_open = std::ranges::all_of(
        connections_, [](const auto& socket) { return is_open(socket.first, socket.second); });
    return all_open ? c10d::ErrorType::SUCCESS : c10d::ErrorType::COMM_ERROR;
  }

  /// Afterwards nothing more is received into any tensor.
  void abort() override {
    if (local_) local_->abort();
    for (const auto& [fd, inode] : connections_)
      if (is_same(fd, inode)) ::shutdown(fd, SHUT_RD);
    const auto deadline = Clock::now() + std::chrono::seconds(1);
    const auto is_closed = [](const auto& socket) { return !is_same(socket.first, socket.second); };
    while (!std::ranges::all_of(connections_, is_closed) && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  Gloo(const StorePtr& store, int rank, int size, c10::intrusive_ptr<Options> options, const Sockets& others)
      : ProcessGroupGloo(store, rank, size, std::move(options)) {
    // Gloo accepts the connections of others in the background.
    const auto deadline = Clock::now() + std::chrono::seconds(1);
    do {
      connections_ = open_connections();
      std::erase_if(connections_, [&](const auto& socket) {
        const auto other = others.find(socket.first);
        return other != others.end() && other->second == socket.second;
      });
    } while (static_cast<int>(connections_.size()) < size - 1 && Clock::now() < deadline &&
             ::usleep(1000) == 0);
  }

  /// A finished collective may stay on its worker thread for another moment.
  bool idle_within(std::chrono::milliseconds patience) {
    const auto deadline = Clock::now() + patience;
    for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      const std::lock_guard lock(workMutex_);
      const auto is_done = [](const auto& work) { return !work; };
      if (workQueue_.empty() && std::all_of(workInProgress_.begin(), workInProgress_.end(), is_done))
        return true;
      if (Clock::now() > deadline) return false;
    }
  }

  Sockets connections_;
  std::unique_ptr<LocalAllReduce> local_;
  std::atomic<std::uint64_t> all_reduces_ = 0;
};

std::mutex kept_devices_mutex;
auto& kept_devices = *new std::map<std::string, GlooDevice>;  // by address; nobody waits for them at exit

/// This host's address for the others.
std::string address_towards_master(const WorkerEnv& env) {
  if (env.world_size == 1 || is_loopback(env.master_addr)) return "127.0.0.1";
  const std::string address = local_address_towards(env.master_addr);
  if (is_loopback(address) && env.world_size > env.local_world_size)
    log_warning("MASTER_ADDR: '" + env.master_addr + "' is " + address +
                " on this host, which other hosts cannot reach; give an address, or name the network "
                "interface in GLOO_SOCKET_IFNAME");
  return address;
}

}  // namespace

std::vector<c10::intrusive_ptr<c10d::Backend>> take_nccl_backends() {
  const std::lock_guard lock(live_nccl_mutex);
  return std::exchange(live_nccl, {});
}

std::string checked_interface(const std::string& option) {
  const char* variable = std::getenv("GLOO_SOCKET_IFNAME");
  const std::string name = !option.empty() ? option : variable != nullptr ? variable : "";
  if (!name.empty() && ::if_nametoindex(name.c_str()) == 0)
    throw UsageError((option.empty() ? "GLOO_SOCKET_IFNAME" : "interface") +
                     std::string(": expected a network interface of this host, got '") + name + "'");
  return name;
}

GlooDevice make_gloo_device(const WorkerEnv& env, const std::string& interface, bool keep) {
  const auto at = interface.empty() ? address_towards_master(env) : interface;
  const auto make = interface.empty() ? &ProcessGroupGloo::createDeviceForHostname
                                      : &ProcessGroupGloo::createDeviceForInterface;
  if (!keep || !interface.empty()) return make(at, /*lazyInit=*/false);
  const std::lock_guard lock(kept_devices_mutex);
  auto& device = kept_devices[at];
  if (!device) device = make(at, /*lazyInit=*/false);
  return device;
}

void forget_gloo_devices() {
  const std::lock_guard lock(kept_devices_mutex);
  kept_devices.clear();
}

c10::intrusive_ptr<c10d::ProcessGroup> make_c10d_group(GroupParts& parts) {
  using Type = c10d::ProcessGroup::BackendType;
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  auto group = c10::make_intrusive<c10d::ProcessGroup>(parts.store, parts.rank, parts.size);
  auto options = ProcessGroupGloo::Options::create(parts.timeout);
  options->devices.push_back(parts.gloo_device);
  auto own_gloo = c10::make_intrusive<Gloo>(parts.store, parts.rank, parts.size, options);
  if (parts.one_host)
    if (auto memory = share_memory(parts.store, parts.rank, parts.size, SharedSum::bytes(parts.size),
                                   parts.shares_memory))
      own_gloo->use(std::move(memory));
  const BackendPtr gloo = record_collectives(std::move(own_gloo), parts.store, parts.name,
                                             parts.is_whole_job ? std::vector<int>{} : parts.world_ranks);
  group->setBackend(at::kCPU, Type::GLOO, gloo);
  if (parts.device.is_cuda() && !parts.nccl) group->setBackend(at::kCUDA, Type::GLOO, gloo);
  if (parts.nccl) {
    parts.nccl_backend =
        cuda_plugin().make_nccl({parts.store, parts.rank, parts.size, parts.name, parts.world_ranks,
                                 parts.nccl_timeout, parts.device, parts.nccl_backend});
    if (const std::lock_guard lock(live_nccl_mutex); parts.recovers) live_nccl.push_back(parts.nccl_backend);
    // Counted separately from Gloo's collectives, like those of a subgroup.
    const BackendPtr nccl =
        record_collectives(parts.nccl_backend, parts.store, parts.name + "/nccl", parts.world_ranks);
    group->setBackend(at::kCUDA, Type::NCCL, nccl);
    set_extra_flight_dump([rank = parts.rank](const std::filesystem::path& folder) {
      write_file_atomic(folder / ("nccl_" + std::to_string(rank) + ".json"), cuda_plugin().dump_nccl_trace());
    });
  }
  group->setDefaultBackend(Type::GLOO);
  group->setGroupName(parts.name);
  return group;
}

}  // namespace ddprun::ddp
