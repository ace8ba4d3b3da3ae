#pragma once

#include <functional>
#include <string>

#include <ddprun/common/held_port.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/group/process_group.h>

namespace ddprun::test {

/// The environment of one of `size` ranks that meet at the port; rank 0 gets the socket.
WorkerEnv rank_env(const HeldPort& port, int rank, int size);

/// Runs body(rank) as each of `size` ranks, each in its own process as in a real job: c10d keeps records
/// that are one a process. What the ranks compare must be made in them; the caller must not have run a
/// backward, after which autograd refuses to work in a forked process. A rank that fails leaves the others
/// alone.
///
/// throws  std::runtime_error naming every rank whose body threw, with its message, or that died
void fork_ranks(int size, const std::function<void(int rank)>& body);

/// Whether the ranks that are forked while it lives add up floats and doubles in memory, as the ranks of one
/// host do by themselves, or over Gloo, as those of several hosts.
class SumsInMemory {
 public:
  explicit SumsInMemory(bool in_memory);
  ~SumsInMemory();
  SumsInMemory(const SumsInMemory&) = delete;
  SumsInMemory& operator=(const SumsInMemory&) = delete;
};

/// fork_ranks() whose ranks meet at a real TCPStore at that address of this host, in a group over Gloo but
/// for what goes through memory (SumsInMemory); closes the group after the body.
void run_ranks(int size, const std::function<void(const ddp::ProcessGroup&)>& body,
               const std::string& address = "127.0.0.1");

}  // namespace ddprun::test
