#pragma once

#include <functional>
#include <string>

#include <ddprun/common/held_port.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/group/process_group.h>

namespace ddprun::test {

/// The environment of one of `size` ranks that meet at the port; rank 0 gets the socket.
WorkerEnv rank_env(const HeldPort& port, int rank, int size);

/// Runs body(rank) for each of `size` ranks in its own process, as in a real job: c10d keeps some state per
/// process. Create everything that the ranks compare inside the body. The caller must not have run a backward
/// pass, after which autograd does not work in a forked process. A rank that fails does not stop the others.
///
/// throws  std::runtime_error with every rank whose body threw, and its message, or that died
void fork_ranks(int size, const std::function<void(int rank)>& body);

/// Whether ranks forked while it lives add up floats and doubles in memory, like ranks on one host, or over
/// Gloo, like ranks on several hosts.
class SumsInMemory {
 public:
  explicit SumsInMemory(bool in_memory);
  ~SumsInMemory();
  SumsInMemory(const SumsInMemory&) = delete;
  SumsInMemory& operator=(const SumsInMemory&) = delete;
};

/// fork_ranks() whose ranks meet at a TCPStore at this host's given address, in a group over Gloo, with sums
/// in memory (SumsInMemory); closes the group after the body.
void run_ranks(int size, const std::function<void(const ddp::ProcessGroup&)>& body,
               const std::string& address = "127.0.0.1");

}  // namespace ddprun::test
