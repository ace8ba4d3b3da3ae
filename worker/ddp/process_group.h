#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>

#include "common/worker_env.h"

namespace c10d {
class ProcessGroup;
}

namespace ddprun::ddp {

/// The ranks of one job and the connections between them (Gloo on CPU). A world of one is an ordinary group.
///
/// End it with close() on every rank. Destroyed without it, as when an exception unwinds, it just drops its
/// connections, and the other ranks' pending collectives fail.
class ProcessGroup {
 public:
  struct Options {
    std::chrono::milliseconds timeout = std::chrono::minutes(30);         ///< of one collective
    std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);  ///< for all ranks to arrive
    std::chrono::milliseconds notice_after = std::chrono::seconds(5);     ///< that long a wait is logged
  };

  /// Meets the other ranks at env's MASTER_ADDR and MASTER_PORT. Rank 0 hosts the store, on the socket the
  /// launcher holds for it (DDPRUN_STORE_FD) if there is one, unless the launcher hosts the store itself.
  /// Keys carry the restart count, so that a store that outlives a restart gives no stale addresses.
  ///
  /// throws  UsageError if DDPRUN_STORE_FD is not a socket bound to MASTER_PORT, GLOO_SOCKET_IFNAME names
  ///         no interface, or there is no route to MASTER_ADDR;
  ///         c10::Error if the other ranks do not arrive within connect_timeout
  static ProcessGroup connect(const WorkerEnv& env, const Options& options);

  ProcessGroup(ProcessGroup&&) noexcept;
  ProcessGroup& operator=(ProcessGroup&&) noexcept;
  ~ProcessGroup();

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Waits until every rank is here, then drops the connections: no rank sees a peer vanish before its own
  /// end.
  void close();

  /// For collectives and DistributedDataParallel.
  const c10::intrusive_ptr<c10d::ProcessGroup>& handle() const;

 private:
  struct Connections;
  ProcessGroup(int rank, int size, std::unique_ptr<Connections> connections);

  int rank_;
  int size_;
  std::unique_ptr<Connections> connections_;
};

}  // namespace ddprun::ddp
