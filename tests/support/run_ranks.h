#pragma once

#include <functional>
#include <string>

#include "common/worker_env.h"
#include "worker/ddp/held_port.h"
#include "worker/ddp/process_group.h"

namespace ddprun::test {

/// A port of an address of this host that is bound and held, as the launcher does it.
using ddp::HeldPort;

/// The environment of one of `size` ranks that meet at the port; rank 0 gets the socket.
WorkerEnv rank_env(const HeldPort& port, int rank, int size);

/// Runs body(rank) as each of `size` ranks, each a process of its own as in a real job: c10d keeps records
/// that are one a process. What the ranks compare must be made in them; the caller must not have run a
/// backward, after which autograd refuses to work in a forked process. A rank that fails leaves the others
/// alone.
///
/// throws  std::runtime_error naming every rank whose body threw, with its message, or that died
void fork_ranks(int size, const std::function<void(int rank)>& body);

/// fork_ranks() whose ranks are connected by Gloo through a real TCPStore at that address of this host;
/// closes the group after the body.
void run_ranks(int size, const std::function<void(const ddp::ProcessGroup&)>& body,
               const std::string& address = "127.0.0.1");

}  // namespace ddprun::test
