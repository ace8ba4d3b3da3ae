#include "tests/support/run_ranks.h"

#include <unistd.h>

#include <cstdlib>

#include <ddprun/group/spawn.h>

namespace ddprun::test {

WorkerEnv rank_env(const HeldPort& port, int rank, int size) {
  WorkerEnv env = env_of_rank(port, rank, size);
  if (rank == 0) env.store_fd = ::dup(port.socket.get());
  return env;
}

void fork_ranks(int size, const std::function<void(int)>& body) {
  SpawnOptions options;
  options.end_others = false;
  spawn(
      size, [&](const WorkerEnv& env) { body(env.rank); }, options);
}

SumsInMemory::SumsInMemory(bool in_memory) {
  ::setenv("DDPRUN_SHARED_MEMORY", in_memory ? "1" : "0", /*overwrite=*/1);
}
SumsInMemory::~SumsInMemory() { ::unsetenv("DDPRUN_SHARED_MEMORY"); }

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
