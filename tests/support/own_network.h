#pragma once

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <fstream>
#include <stdexcept>
#include <string>

#include <ddprun/common/files.h>

namespace ddprun::test {

/// Gives the calling, single-threaded process its own network with only loopback, so it counts no other
/// program's bytes. Returns false where this is not allowed.
inline bool enter_own_network() {
  if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM, 0));
  ifreq request{};
  std::string("lo").copy(request.ifr_name, sizeof request.ifr_name - 1);
  request.ifr_flags = IFF_UP;
  return ::ioctl(socket.get(), SIOCSIFFLAGS, &request) == 0;
}

/// Removes an address family from this separate network. Returns false where this is not allowed.
inline bool leave_only_ipv4() {
  std::ofstream switch_off("/proc/sys/net/ipv6/conf/all/disable_ipv6");
  return static_cast<bool>(switch_off << "1" << std::flush);
}
inline bool leave_only_ipv6() {
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM, 0));
  ifreq request{};
  std::string("lo").copy(request.ifr_name, sizeof request.ifr_name - 1);
  request.ifr_addr.sa_family = AF_INET;  // 0.0.0.0: none
  return ::ioctl(socket.get(), SIOCSIFADDR, &request) == 0;
}

/// Bytes sent over loopback in the caller's network, headers included.
inline double loopback_bytes() {
  std::ifstream file("/proc/thread-self/net/dev");  // /sys shows the network of whoever mounted it
  for (std::string line; std::getline(file, line);) {
    const auto name = line.find("lo:");
    if (name != std::string::npos) return std::stod(line.substr(name + 3));
  }
  throw std::runtime_error("/proc/thread-self/net/dev has no line of lo");
}

}  // namespace ddprun::test
