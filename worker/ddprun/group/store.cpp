#include <ddprun/group/store.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <netdb.h>
#include <poll.h>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>

namespace ddprun::ddp {
namespace {

/// How long wait_for_port() looks for the store's host before the store's own wait takes over.
constexpr std::chrono::milliseconds kLookForHost{5000};

/// -1 if it has none.
int bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return -1;
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in&>(address).sin_port);
  return address.ss_family == AF_INET6 ? ntohs(reinterpret_cast<sockaddr_in6&>(address).sin6_port) : -1;
}

/// Keys carry the restart count, because a store may outlive a restart with stale addresses.
std::string attempt_of(const WorkerEnv& env) { return "attempt_" + std::to_string(env.restart_count); }

/// The file of a file:// URL; nullopt for env://.
std::optional<std::filesystem::path> file_of(const std::string& init_method) {
  const std::string scheme = "file://";
  if (init_method == "env://") return std::nullopt;
  const std::string path = init_method.rfind(scheme, 0) == 0 ? init_method.substr(scheme.size()) : "";
  if (path.empty() || path.front() != '/' || path.back() == '/' || path.find('?') != std::string::npos)
    throw UsageError(
        "init_method: expected env:// or file:///PATH without parameters (rank and world size come from the "
        "environment), got '" +
        init_method + "'");
  return path;
}

StorePtr make_tcp_store(const WorkerEnv& env, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(env.master_port);
  options.isServer = hosts_store(env, "env://");
  options.multiTenant = true;  // its groups of this process share a host
  options.timeout = timeout;
  if (options.isServer)
    options.masterListenFd = env.store_fd;
  else
    wait_for_port(env.master_addr, options.port, std::min(timeout, kLookForHost));
  return c10::make_intrusive<c10d::TCPStore>(env.master_addr, options);
}

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) found = nullptr;
  return {found, ::freeaddrinfo};
}

bool can_connect(const addrinfo& address, milliseconds at_most, const std::function<bool()>& give_up) {
  const UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return false;
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return false;
  pollfd wait{fd.get(), POLLOUT, 0};
  constexpr milliseconds kLook{50};
  for (auto left = at_most; ::poll(&wait, 1, static_cast<int>(std::min(left, kLook).count())) != 1;
       left -= kLook)
    if (left <= kLook || (give_up && give_up())) return false;
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

/// dladdr() would also look for the function's name among all of LibTorch's, which takes a millisecond.
bool is_in_libtorch(const void* code) {
  auto address = reinterpret_cast<std::uintptr_t>(code);
  const auto has_it = [](dl_phdr_info* object, std::size_t, void* wanted) -> int {
    if (std::string_view(object->dlpi_name).find("libtorch") == std::string_view::npos) return 0;
    const auto at = *static_cast<std::uintptr_t*>(wanted) - object->dlpi_addr;
    const auto covers = [at](const auto& part) {
      return part.p_type == PT_LOAD && at >= part.p_vaddr && at - part.p_vaddr < part.p_memsz;
    };
    return std::any_of(object->dlpi_phdr, object->dlpi_phdr + object->dlpi_phnum, covers);
  };
  return ::dl_iterate_phdr(has_it, &address) != 0;
}

}  // namespace

void check_store(const WorkerEnv& env, const std::string& init_method) {
  if (file_of(init_method) || !env.store_fd || env.use_agent_store) return;
  const int fd = *env.store_fd;
  if (bound_port(fd) != env.master_port)
    throw UsageError("DDPRUN_STORE_FD: expected a socket bound to MASTER_PORT " +
                     std::to_string(env.master_port) + ", got file descriptor " + std::to_string(fd));
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
}

StorePtr make_store(const WorkerEnv& env, const std::string& init_method, int number, milliseconds timeout) {
  const auto file = file_of(init_method);
  const auto which = [number](char mark) { return number == 0 ? "" : mark + std::to_string(number); };
  if (!file)
    return c10::make_intrusive<c10d::PrefixStore>("ddprun/" + attempt_of(env) + which('/'),
                                                  make_tcp_store(env, timeout));
  if (!std::filesystem::is_directory(file->parent_path()))
    throw IoError(file->parent_path(), "init_method: expected a folder that all ranks can write to", ENOENT);
  // A later group has its own file, since the last rank to leave the one before removes that. Keys carry the
  // run id, too, because a file may outlive the job.
  auto store = c10::make_intrusive<c10d::FileStore>(file->string() + which('.'), env.world_size);
  store->setTimeout(timeout);
  return c10::make_intrusive<c10d::PrefixStore>("ddprun/" + env.run_id + "/" + attempt_of(env), store);
}

MeetingPlace& meeting_place(const WorkerEnv& env, const std::string& init_method) {
  static std::mutex mutex;
  static auto& places = *new std::map<std::string, MeetingPlace>;  // nobody waits for a store's end
  const std::scoped_lock lock(mutex);
  return places[describe_meeting_place(env, init_method) + '/' + attempt_of(env) + '/' +
                std::to_string(env.rank)];
}

bool hosts_store(const WorkerEnv& env, const std::string& init_method) {
  return !file_of(init_method) && env.rank == 0 && !env.use_agent_store;
}

std::string describe_meeting_place(const WorkerEnv& env, const std::string& init_method) {
  const auto file = file_of(init_method);
  return file ? file->string() : env.master_addr + ":" + std::to_string(env.master_port);
}

std::chrono::nanoseconds pause_after(std::chrono::nanoseconds waited, milliseconds at_most) {
  return std::clamp<std::chrono::nanoseconds>(waited / 4, milliseconds(1), at_most);
}

bool wait_for_port(const std::string& host, std::uint16_t port, milliseconds at_most,
                   const std::function<bool()>& give_up) {
  const auto begin = Clock::now();
  Addresses addresses(nullptr, ::freeaddrinfo);
  while (!(give_up && give_up())) {
    if (!addresses) addresses = resolve(host, port);
    if (!addresses && !give_up) return false;
    for (const auto* address = addresses.get(); address != nullptr; address = address->ai_next) {
      const auto left = std::chrono::duration_cast<milliseconds>(begin + at_most - Clock::now());
      if (can_connect(*address, std::max(left, milliseconds(1)), give_up)) return true;
    }
    const auto waited = Clock::now() - begin;
    const auto pause = pause_after(waited, milliseconds(100));
    if (waited + pause >= at_most) return false;
    std::this_thread::sleep_for(pause);
  }
  return false;
}

}  // namespace ddprun::ddp

/// Takes precedence over libc's: LibTorch looks up each peer's name, only for messages. Where the name server
/// does not answer, that takes ten seconds per connection and ends in a warning. It gets the address; all
/// other callers get what they ask for.
extern "C" __attribute__((visibility("default"))) int getnameinfo(const sockaddr* address, socklen_t size,
                                                                  char* host, socklen_t host_size,
                                                                  char* service, socklen_t service_size,
                                                                  int flags) {
  static const auto libc = reinterpret_cast<decltype(&::getnameinfo)>(::dlsym(RTLD_NEXT, "getnameinfo"));
  if (ddprun::ddp::is_in_libtorch(__builtin_return_address(0))) flags |= NI_NUMERICHOST;
  return libc(address, size, host, host_size, service, service_size, flags);
}
