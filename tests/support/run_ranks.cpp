#include "tests/support/run_ranks.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <exception>
#include <thread>
#include <vector>

#include "common/errors.h"

namespace ddprun::test {

HeldPort::HeldPort() : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  ensure(::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
             ::bind(socket.get(), generic, size) == 0 && ::getsockname(socket.get(), generic, &size) == 0,
         "a port of 127.0.0.1 can be bound");
  port = ntohs(address.sin_port);
}

WorkerEnv rank_env(const HeldPort& port, int rank, int size) {
  WorkerEnv env;
  env.rank = env.local_rank = env.role_rank = rank;
  env.world_size = env.local_world_size = env.role_world_size = size;
  env.master_port = port.port;
  if (rank == 0) env.store_fd = ::dup(port.socket.get());
  return env;
}

void run_ranks(int size, const std::function<void(const ddp::ProcessGroup&)>& body) {
  const HeldPort port;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        auto group = ddp::ProcessGroup::connect(rank_env(port, rank, size),
                                                {std::chrono::seconds(30), std::chrono::seconds(30)});
        body(group);
        group.close();
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace ddprun::test
