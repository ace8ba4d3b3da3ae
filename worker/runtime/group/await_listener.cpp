#include <ddprun/group/await_listener.h>

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <thread>

#include <ddprun/common/files.h>

namespace ddprun::ddp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) found = nullptr;
  return {found, ::freeaddrinfo};
}

bool can_connect(const addrinfo& address, milliseconds at_most) {
  const UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return false;
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return false;
  pollfd wait{fd.get(), POLLOUT, 0};
  if (::poll(&wait, 1, static_cast<int>(at_most.count())) != 1) return false;
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

}  // namespace

bool await_listener(const std::string& host, std::uint16_t port, milliseconds at_most) {
  const auto deadline = Clock::now() + at_most;
  const auto addresses = resolve(host, port);
  if (!addresses) return false;
  for (milliseconds pause{1};; pause = std::min(2 * pause, milliseconds(100))) {
    for (const auto* address = addresses.get(); address != nullptr; address = address->ai_next) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
      if (can_connect(*address, std::max(left, milliseconds(1)))) return true;
    }
    if (Clock::now() + pause >= deadline) return false;
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace ddprun::ddp
