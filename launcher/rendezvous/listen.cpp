#include "launcher/rendezvous/listen.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "launcher/events/launch_error.h"

namespace ddprun::launcher {
using boost::asio::ip::tcp;
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

/// A listening socket; empty, with errno set, if it cannot listen.
UniqueFd try_listen(const tcp::endpoint& address) {
  UniqueFd fd(::socket(address.data()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) return {};
  if (address.address().is_v6()) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  if (::bind(fd.get(), address.data(), static_cast<socklen_t>(address.size())) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

std::vector<tcp::endpoint> any_address(int port) {
  const auto number = static_cast<unsigned short>(port);
  return {tcp::endpoint(tcp::v4(), number), tcp::endpoint(tcp::v6(), number)};
}

bool is_own(const tcp::endpoint& endpoint) {
  return endpoint.address().is_unspecified() || is_own_address(endpoint.address().to_string());
}

int port_of(const UniqueFd& fd) {
  tcp::endpoint address;
  socklen_t size = static_cast<socklen_t>(address.capacity());
  return ::getsockname(fd.get(), address.data(), &size) == 0 ? address.port() : 0;
}

}  // namespace

std::string outward_address() {
  std::string v6;
  for (const OwnAddress& own : own_addresses()) {
    if (!own.outward) continue;
    if (own.text.find(':') == std::string::npos) return own.text;
    if (v6.empty()) v6 = own.text;
  }
  return v6;
}

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

bool is_loopback(const std::string& host) {
  boost::system::error_code is_name;
  const auto address = boost::asio::ip::make_address(host, is_name);
  return is_name ? host == "localhost" : address.is_loopback();
}

Listening listen_at(const Endpoint& endpoint, const std::vector<tcp::endpoint>& addresses, bool required) {
  Listening result;
  result.loopback_only = std::all_of(addresses.begin(), addresses.end(),
                                     [](const auto& address) { return address.address().is_loopback(); });
  std::vector<tcp::endpoint> wanted = addresses;
  if (result.loopback_only && !is_loopback(endpoint.host) && (required || is_this_host(endpoint.host))) {
    result.advertised = outward_address();
    result.loopback_only = result.advertised.empty();
    if (!result.loopback_only) wanted = any_address(endpoint.port);
  }
  result.at_any_address = required && std::none_of(wanted.begin(), wanted.end(), is_own);
  if (result.at_any_address) wanted = any_address(endpoint.port);
  int error = EADDRNOTAVAIL;
  for (auto address = wanted.begin(); address != wanted.end(); ++address) {
    if (std::find(wanted.begin(), address, *address) != address) continue;  // a duplicate in /etc/hosts
    if (UniqueFd fd = try_listen(*address)) {
      result.sockets.push_back(std::move(fd));
      continue;
    }
    if (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) error = errno;
    if (error != EADDRINUSE) continue;
    result.sockets.clear();  // the port's owner would answer some of the nodes
    break;
  }
  if (!result.sockets.empty()) return result;
  result.taken = error == EADDRINUSE;
  if (!required && (error == EADDRINUSE || error == EADDRNOTAVAIL)) return result;
  throw LaunchError(LaunchError::kOwnFailure, "cannot listen on " + to_string(endpoint) +
                                                  " for the other nodes: " + std::strerror(error) +
                                                  (error == EADDRINUSE ? port_owner(endpoint.port) : ""));
}

Listening listen_at_free_port(const std::string& host) {
  boost::system::error_code is_name;
  const auto address = boost::asio::ip::make_address(host, is_name);
  Listening result;
  result.loopback_only = is_loopback(host);
  result.at_any_address = !result.loopback_only && (is_name || !is_own_address(host));
  std::vector<tcp::endpoint> wanted = {tcp::endpoint(address, 0)};
  if (host == "localhost") wanted = {tcp::endpoint(boost::asio::ip::make_address(loopback_address()), 0)};
  if (result.at_any_address) wanted = any_address(0);
  int error = 0;
  for (tcp::endpoint& place : wanted) {
    place.port(static_cast<unsigned short>(result.port));  // the second one's is the first one's
    if (UniqueFd fd = try_listen(place)) {
      result.port = port_of(fd);
      result.sockets.push_back(std::move(fd));
    } else {
      error = errno;
    }
  }
  if (!result.sockets.empty()) return result;
  throw LaunchError(LaunchError::kOwnFailure, "cannot listen on a free port of " + host +
                                                  " for the other nodes: " + std::strerror(error));
}

}  // namespace ddprun::launcher
