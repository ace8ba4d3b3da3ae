#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/integration/job.h"

namespace ddprun::test {

/// A port of 127.0.0.1 that nobody has had just now.
inline std::string free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(fd, reinterpret_cast<const sockaddr*>(&address), size);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(fd);
  return std::to_string(ntohs(address.sin_port));
}

inline sockaddr_in loopback(const std::string& port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<in_port_t>(std::stoi(port)));
  return address;
}

inline UniqueFd connect_to(const std::string& port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

/// The other side has closed the connection. What it has said is thrown away.
inline bool is_closed(const UniqueFd& fd) {
  char bytes[256];
  ssize_t size = 0;
  do size = ::recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  while (size > 0);
  return size == 0 || (errno != EAGAIN && errno != EINTR);
}

/// What a ddprun without a token says first, and then this message.
inline UniqueFd say_at(const std::string& port, const std::string& message) {
  UniqueFd fd = connect_to(port);
  const std::uint32_t length = htonl(static_cast<std::uint32_t>(message.size()));
  const std::string bytes = std::string("ddprun\r\n\0\3\0\0", 12) + std::string(20, '\0') +
                            std::string(reinterpret_cast<const char*>(&length), sizeof length) + message;
  REQUIRE(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  return fd;
}

/// Gives the program a stderr that is full and that nobody reads. It holds the reading end itself, so that
/// writing waits instead of failing.
inline void with_full_stderr(Command& command) {
  command.in_child = [] {
    int ends[2];
    if (::pipe(ends) != 0) ::_exit(99);
    ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
    while (::write(ends[1], "x", 1) == 1) {
    }
    ::fcntl(ends[1], F_SETFL, 0);
    ::dup2(ends[1], STDERR_FILENO);
  };
}

/// The nodes of one job, each with its own ddprun, all on this host. The first has the coordinator.
class NodeJob {
 public:
  /// Starts a node with extra flags.
  Child& start(const std::vector<std::string>& own, const std::vector<std::string>& actions) {
    return add(job(flags(own), actions));
  }
  Child& start_script(const std::vector<std::string>& own, const std::string& text) {
    return add(script(flags(own), text));
  }
  Child& add(Command command) {
    if (!token.empty()) command.env["DDPRUN_TOKEN"] = token;
    nodes_.push_back(std::make_unique<Child>(command));
    return *nodes_.back();
  }

  /// What the next node needs to find the others, and extra flags.
  std::vector<std::string> flags(const std::vector<std::string>& own) const {
    std::vector<std::string> all = {"--rdzv-endpoint=127.0.0.1:" + port, "--rdzv-id=the-job",
                                    std::string("--rdzv-conf=is_host=") + (nodes_.empty() ? "1" : "0")};
    all.insert(all.end(), own.begin(), own.end());
    return all;
  }

  Child& node(std::size_t i) { return *nodes_[i]; }
  std::size_t size() const { return nodes_.size(); }

  /// Every node's end, in the order of starting.
  std::vector<ExitStatus> wait() {
    std::vector<ExitStatus> ends;
    for (const auto& node : nodes_) ends.push_back(node->wait());
    for (const auto& node : nodes_) check_nothing_left(*node);
    return ends;
  }

  std::string port = free_port();
  std::string token;  ///< of the nodes that are started from now on

 private:
  std::vector<std::unique_ptr<Child>> nodes_;
};

}  // namespace ddprun::test
