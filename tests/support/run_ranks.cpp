#include "tests/support/run_ranks.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/errors.h"

namespace ddprun::test {
namespace {

/// In the child: ends it with 1 and the message of what body throws, or with 0.
[[noreturn]] void run_forked(pid_t parent, int message_fd, const std::function<void()>& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  try {
    body();
  } catch (const std::exception& error) {
    const std::string message = error.what();
    [[maybe_unused]] const auto written = ::write(message_fd, message.data(), message.size());
    ::_exit(1);
  }
  ::_exit(0);  // not exit(): what the test program does at its end is not for us to do
}

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t size = ::read(fd, buffer, sizeof buffer);
    if (size <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(size));
  }
}

}  // namespace

HeldPort::HeldPort(const std::string& where) : address(where) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  ensure(::getaddrinfo(where.c_str(), "0", &hints, &list) == 0, "an address as a number");
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  socket.reset(::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ensure(::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
             ::bind(socket.get(), list->ai_addr, list->ai_addrlen) == 0 &&
             ::getsockname(socket.get(), list->ai_addr, &list->ai_addrlen) == 0,
         "a port of the address can be bound");
  port = ntohs(list->ai_family == AF_INET ? reinterpret_cast<sockaddr_in*>(list->ai_addr)->sin_port
                                          : reinterpret_cast<sockaddr_in6*>(list->ai_addr)->sin6_port);
}

WorkerEnv rank_env(const HeldPort& port, int rank, int size) {
  WorkerEnv env;
  env.rank = env.local_rank = env.role_rank = rank;
  env.world_size = env.local_world_size = env.role_world_size = size;
  env.master_addr = port.address;
  env.master_port = port.port;
  if (rank == 0) env.store_fd = ::dup(port.socket.get());
  return env;
}

void fork_ranks(int size, const std::function<void(int)>& body) {
  struct Rank {
    pid_t pid;
    UniqueFd message;  ///< what its body threw, until it ends
  };
  std::vector<Rank> ranks;
  const pid_t parent = ::getpid();
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    ensure(::pipe2(ends, O_CLOEXEC) == 0, "a pipe can be made");
    UniqueFd read_end(ends[0]), write_end(ends[1]);
    const pid_t pid = ::fork();
    ensure(pid >= 0, "a process can be forked");
    if (pid == 0) run_forked(parent, write_end.get(), [&] { body(rank); });
    ranks.push_back({pid, std::move(read_end)});
  }
  std::string errors;
  for (int rank = 0; rank < size; ++rank) {
    const Rank& forked = ranks[static_cast<std::size_t>(rank)];
    const std::string message = read_all(forked.message.get());
    int status = 0;
    ensure(::waitpid(forked.pid, &status, 0) == forked.pid, "a rank can be waited for");
    if (WIFSIGNALED(status)) {
      errors += "\nrank " + std::to_string(rank) + " died of signal " + std::to_string(WTERMSIG(status));
    } else if (status != 0) {
      errors += "\nrank " + std::to_string(rank) + ": " + message;
    }
  }
  if (!errors.empty()) throw std::runtime_error(errors.substr(1));
}

void run_ranks(int size, const std::function<void(const ddp::ProcessGroup&)>& body,
               const std::string& address) {
  const HeldPort port(address);
  fork_ranks(size, [&](int rank) {
    auto group = ddp::ProcessGroup::connect(rank_env(port, rank, size),
                                            {std::chrono::seconds(30), std::chrono::seconds(30)});
    body(group);
    group.close();
  });
}

}  // namespace ddprun::test
