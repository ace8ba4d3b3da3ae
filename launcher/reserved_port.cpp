#include "launcher/reserved_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "launcher/launch_error.h"

namespace ddprun {
namespace {

/// The inode of a socket that listens on the port of any address; 0 if there is none.
unsigned long listening_inode(int port) {
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    std::getline(lines, line);  // the headings
    while (std::getline(lines, line)) {
      unsigned local_port = 0, state = 0;
      unsigned long inode = 0;
      // "sl: ADDRESS:PORT REMOTE:PORT STATE queues timer retransmits uid timeout INODE ..."
      if (std::sscanf(line.c_str(), " %*d: %*[0-9A-F]:%X %*[0-9A-F]:%*X %X %*s %*s %*s %*s %*s %lu",
                      &local_port, &state, &inode) != 3)
        continue;
      if (static_cast<int>(local_port) == port && state == 10 /* TCP_LISTEN */) return inode;
    }
  }
  return 0;
}

/// " by PID (NAME)" of a process that listens on the port, if it is one that we may see.
std::string owner_of(int port) {
  const unsigned long inode = listening_inode(port);
  if (inode == 0) return "";
  const std::string socket = "socket:[" + std::to_string(inode) + "]";
  std::error_code ignored;
  for (const auto& process : std::filesystem::directory_iterator("/proc", ignored))
    for (const auto& fd : std::filesystem::directory_iterator(process.path() / "fd", ignored)) {
      if (std::filesystem::read_symlink(fd.path(), ignored) != socket) continue;
      std::ifstream comm(process.path() / "comm");
      std::string name;
      std::getline(comm, name);
      return " by process " + process.path().filename().string() + " (" + name + ")";
    }
  return "";
}

[[noreturn]] void fail(int port, int error) {
  const bool taken = error == EADDRINUSE && port != 0;
  throw LaunchError(LaunchError::kOwnFailure,
                    "cannot reserve " + (port == 0 ? "a free port" : "port " + std::to_string(port)) +
                        " on 127.0.0.1: " + std::strerror(error) + (taken ? owner_of(port) : "") +
                        (taken ? " (--master-port; left out, a free one is found)" : ""));
}

UniqueFd bind_reusable(int port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    fail(port, errno);
  return fd;
}

int bound_port(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) fail(0, errno);
  return ntohs(address.sin_port);
}

}  // namespace

ReservedPort::ReservedPort(std::optional<int> wanted)
    : held_(bind_reusable(wanted.value_or(0))),
      number_(bound_port(held_.get())),
      for_rank0_(bind_reusable(number_)) {}

}  // namespace ddprun
