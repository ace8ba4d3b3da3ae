#include "worker/ddp/process_group.h"

#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "common/errors.h"
#include "common/logging.h"
#include "worker/ddp/local_address.h"
#include "worker/ddp/record_collectives.h"

namespace ddprun::ddp {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

std::optional<int> bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return std::nullopt;
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6&>(address).sin6_port);
  return std::nullopt;
}

/// The launcher's socket, checked and kept from our own children.
int take_store_fd(const WorkerEnv& env) {
  const int fd = *env.store_fd;
  if (bound_port(fd) != env.master_port)
    throw UsageError("DDPRUN_STORE_FD: expected a socket bound to MASTER_PORT " +
                     std::to_string(env.master_port) + ", got file descriptor " + std::to_string(fd));
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return fd;
}

StorePtr make_store(const WorkerEnv& env, std::chrono::milliseconds timeout) {
  if (env.master_port == 0) return c10::make_intrusive<c10d::HashStore>();
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(env.master_port);
  options.isServer = env.rank == 0 && !env.use_agent_store;
  options.numWorkers = env.use_agent_store ? std::nullopt : std::optional<std::size_t>(env.world_size);
  options.timeout = timeout;
  if (options.isServer && env.store_fd) options.masterListenFd = take_store_fd(env);
  return c10::make_intrusive<c10d::PrefixStore>(
      "ddprun/attempt_" + std::to_string(env.restart_count),
      c10::make_intrusive<c10d::TCPStore>(env.master_addr, options));
}

/// The network device of Gloo: the interface the user names; loopback on one node, where nothing is open to
/// the network; otherwise that of the way to rank 0's host. This host's own name is not looked up: it often
/// has no address, or one of loopback. To be called once the store is there: until then MASTER_ADDR may be a
/// name that nobody knows yet.
std::shared_ptr<gloo::transport::Device> make_device(const WorkerEnv& env) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME"); interface != nullptr && *interface != '\0') {
    if (::if_nametoindex(interface) == 0)
      throw UsageError("GLOO_SOCKET_IFNAME: expected a network interface of this host, got '" +
                       std::string(interface) + "'");
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  if (env.master_port == 0 || is_loopback(env.master_addr))
    return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  const std::string address = local_address_towards(env.master_addr);
  if (is_loopback(address) && env.world_size > env.local_world_size)
    log_warning("MASTER_ADDR: '" + env.master_addr + "' is " + address +
                " on this host, which other hosts cannot reach; give an address, or name the network "
                "interface in GLOO_SOCKET_IFNAME");
  return c10d::ProcessGroupGloo::createDeviceForHostname(address);
}

/// Logs a line if it lives longer than expected.
class LateNotice {
 public:
  LateNotice(std::chrono::milliseconds expected, std::string line)
      : thread_([expected, line = std::move(line)](const std::stop_token& stop) {
          std::mutex mutex;
          std::unique_lock lock(mutex);
          std::condition_variable_any().wait_for(lock, stop, expected, [] { return false; });
          if (!stop.stop_requested()) log_info(line);
        }) {}

 private:
  std::jthread thread_;
};

std::string waiting_line(const WorkerEnv& env, std::chrono::milliseconds timeout) {
  return "rank " + std::to_string(env.rank) + " waits at " + env.master_addr + ":" +
         std::to_string(env.master_port) + " for all " + std::to_string(env.world_size) + " ranks, up to " +
         std::to_string(std::chrono::ceil<std::chrono::seconds>(timeout).count()) + " s";
}

}  // namespace

struct ProcessGroup::Connections {
  // In the order of making; the group goes before the store that its keys are in.
  StorePtr store;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
};

ProcessGroup ProcessGroup::connect(const WorkerEnv& env, const Options& options) {
  const LateNotice notice(options.notice_after, waiting_line(env, options.connect_timeout));
  auto connections = std::make_unique<Connections>();
  connections->store = make_store(env, options.connect_timeout);
  auto gloo_options = c10d::ProcessGroupGloo::Options::create(options.timeout);
  gloo_options->devices.push_back(make_device(env));
  connections->gloo =
      c10::make_intrusive<c10d::ProcessGroupGloo>(connections->store, env.rank, env.world_size, gloo_options);
  connections->group = c10::make_intrusive<c10d::ProcessGroup>(connections->store, env.rank, env.world_size);
  connections->group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                                 record_collectives(connections->gloo, connections->store));
  connections->group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return {env.rank, env.world_size, std::move(connections)};
}

ProcessGroup::ProcessGroup(int rank, int size, std::unique_ptr<Connections> connections)
    : rank_(rank), size_(size), connections_(std::move(connections)) {}
ProcessGroup::ProcessGroup(ProcessGroup&&) noexcept = default;
ProcessGroup& ProcessGroup::operator=(ProcessGroup&&) noexcept = default;
ProcessGroup::~ProcessGroup() = default;

void ProcessGroup::close() {
  if (!connections_) return;
  connections_->group->barrier()->wait();
  connections_.reset();
}

const c10::intrusive_ptr<c10d::ProcessGroup>& ProcessGroup::handle() const {
  ensure(connections_ != nullptr, "the process group is closed");
  return connections_->group;
}

}  // namespace ddprun::ddp
