#include "launcher/host/port_owner.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "launcher/events/launch_error.h"

namespace ddprun::launcher {
namespace {

/// The inode of a socket that listens on the port at any address; 0: none.
unsigned long listening_inode(int port) {
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    std::getline(lines, line);  // the header
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

}  // namespace

std::string port_owner(int port) {
  const unsigned long inode = listening_inode(port);
  if (inode == 0) return "";
  const std::string socket = "socket:[" + std::to_string(inode) + "]";
  std::error_code ignored;
  for (const auto& process : std::filesystem::directory_iterator("/proc", ignored)) {
    if (process.path().filename().string().find_first_not_of("0123456789") != std::string::npos) continue;
    for (const auto& fd : std::filesystem::directory_iterator(process.path() / "fd", ignored)) {
      if (std::filesystem::read_symlink(fd.path(), ignored) != socket) continue;
      std::ifstream comm(process.path() / "comm");
      std::string name;
      std::getline(comm, name);
      return " by process " + process.path().filename().string() + " (" + name + ")";
    }
  }
  return "";
}

HeldPort reserve_port(const std::string& address, std::optional<int> wanted) {
  try {
    return HeldPort(address, wanted.value_or(0));
  } catch (const std::system_error& error) {
    const bool taken = wanted && error.code() == std::errc::address_in_use;
    throw LaunchError(LaunchError::kOwnFailure,
                      "cannot reserve " + (wanted ? "port " + std::to_string(*wanted) : "a free port") +
                          " on " + address + ": " + error.code().message() +
                          (taken ? port_owner(*wanted) : "") +
                          (taken ? " (--master-port; leave it out to get a free port)" : ""));
  }
}

}  // namespace ddprun::launcher
