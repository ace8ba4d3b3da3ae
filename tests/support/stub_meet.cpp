#include "tests/support/stub_meet.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace ddprun::test {
namespace {

int number(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? -1 : std::stoi(value);
}

bool receive(int fd, std::uint32_t& word) {
  return ::recv(fd, &word, sizeof word, MSG_WAITALL) == static_cast<ssize_t>(sizeof word);
}

bool send(int fd, std::uint32_t word) {
  return ::send(fd, &word, sizeof word, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof word);
}

bool host_meeting(std::size_t world_size) {
  const int store = number("DDPRUN_STORE_FD");
  if (::listen(store, SOMAXCONN) != 0) return false;
  std::set<std::uint32_t> ranks{0};
  std::vector<int> peers;
  while (ranks.size() < world_size) {
    const int peer = ::accept(store, nullptr, nullptr);
    std::uint32_t rank = 0;
    if (peer < 0) return false;
    if (!receive(peer, rank)) continue;  // it disconnected before it sent its rank
    if (rank >= world_size || !ranks.insert(rank).second) return false;
    peers.push_back(peer);
  }
  for (const int peer : peers) send(peer, 0);
  return true;
}

bool join_meeting(std::uint32_t rank) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* address = nullptr;
  if (::getaddrinfo(std::getenv("MASTER_ADDR"), std::getenv("MASTER_PORT"), &hints, &address) != 0)
    return false;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(address, ::freeaddrinfo);
  for (;; ::usleep(1000)) {  // until rank 0 listens; the test has a deadline
    const int fd = ::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    std::uint32_t answer = 0;
    if (::connect(fd, address->ai_addr, address->ai_addrlen) == 0 && send(fd, rank) && receive(fd, answer))
      return true;
    ::close(fd);
  }
}

}  // namespace

bool meet_all_ranks() {
  const int rank = number("RANK"), world_size = number("WORLD_SIZE");
  if (rank < 0 || rank >= world_size) return false;
  return rank == 0 ? host_meeting(static_cast<std::size_t>(world_size))
                   : join_meeting(static_cast<std::uint32_t>(rank));
}

}  // namespace ddprun::test
