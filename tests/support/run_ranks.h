#pragma once

#include <functional>

#include "common/unique_fd.h"
#include "common/worker_env.h"
#include "worker/ddp/process_group.h"

namespace ddprun::test {

/// A port of 127.0.0.1 that is bound and held, as the launcher does it.
struct HeldPort {
  HeldPort();
  UniqueFd socket;
  int port = 0;
};

/// The environment of one of `size` ranks that meet at the port; rank 0 gets the socket.
WorkerEnv rank_env(const HeldPort& port, int rank, int size);

/// Runs body(group) as each of `size` ranks, each in a thread, connected by Gloo through a real TCPStore, and
/// closes the group. Rethrows the first rank's exception; the others' groups are then dropped.
void run_ranks(int size, const std::function<void(const ddp::ProcessGroup&)>& body);

}  // namespace ddprun::test
