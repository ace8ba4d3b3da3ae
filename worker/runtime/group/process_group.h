#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/worker_env.h>
#include <ddprun/group/device_choice.h>

namespace c10d {
class ProcessGroup;
}

namespace ddprun::ddp {

/// The ranks of one job, or some of them, and the connections between them.
///
/// A world of one is an ordinary group that costs nothing: no store, sockets or threads until handle() is
/// asked for. Copies stand for the same group.
///
/// End it with close() on every rank. Destroyed without it, as when an exception unwinds, it drops its
/// connections, and pending collectives fail on this rank and the others. What holds its handle(), such as a
/// DistributedDataParallel or a subgroup, keeps what it needs of it alive: they may go in any order.
class ProcessGroup {
 public:
  struct Options {
    std::chrono::milliseconds timeout = std::chrono::minutes(30);         ///< of one collective
    std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);  ///< for all ranks to arrive
    std::chrono::milliseconds notice_after = std::chrono::seconds(5);     ///< that long a wait is logged
    /// "env://": they meet at MASTER_ADDR and MASTER_PORT. "file:///PATH": in a file that all ranks reach and
    /// no other job uses; the last to leave removes it.
    std::string init_method = "env://";
    /// Network interface for the ranks' connections. Empty: that of GLOO_SOCKET_IFNAME, else loopback on one
    /// node and the way to MASTER_ADDR on several.
    std::string interface = {};
    /// Sums of floats and doubles on the CPU go through memory, not through sockets, where all ranks of the
    /// job are on one host and see each other's processes. DDPRUN_SHARED_MEMORY=0 turns it off too.
    bool shared_memory = true;
    DeviceChoice device = DeviceChoice::kCpu;
    BackendChoice backend = BackendChoice::kAuto;  ///< of CUDA tensors
  };

  /// Meets the other ranks. Rank 0 hosts the store of env://, on the socket the launcher holds for it
  /// (DDPRUN_STORE_FD) if there is one, unless the launcher hosts the store itself. If device is not kCpu it
  /// must come before the first use of autograd or of a random generator (cuda_backend.h). Every rank passes
  /// the same options. No other thread may open TCP connections meanwhile, nor during new_group(): they would
  /// be taken for the group's own and shut down with it when it ends in a failure.
  ///
  /// throws  UsageError if DDPRUN_STORE_FD is not a socket bound to MASTER_PORT, the network interface is not
  ///         there, there is no route to MASTER_ADDR, init_method is none of the two, or device and backend
  ///         cannot be had; IoError if the folder of file:// is not there;
  ///         MissingRanks (missing_ranks.h) naming who did not arrive within connect_timeout; c10::Error if
  ///         rank 0 did not
  static ProcessGroup connect(const WorkerEnv& env, const Options& options);

  int rank() const;  ///< in this group
  int size() const;
  const std::vector<int>& world_ranks() const;  ///< of its members, by their ranks in this group
  at::Device device() const;                    ///< where this rank's module and batches belong

  /// What carries the collectives of tensors on device(): "gloo" or "nccl".
  std::string backend() const;

  /// A group of some of this group's ranks. Every rank of this group calls it with the same ranks, also those
  /// that are not among them, and several calls in the same order.
  ///
  /// ranks    ranks of this group, in any order; in the new group they count in ascending order
  /// timeout  of a collective of the new group; as in this one if not given
  /// returns  the group; nullopt on a rank that is not in it
  /// throws   std::invalid_argument, on every rank, if there are none, one is no rank of this group or comes
  ///          twice, or the ranks do not all say the same
  std::optional<ProcessGroup> new_group(
      std::vector<int> ranks, std::optional<std::chrono::milliseconds> timeout = std::nullopt) const;

  /// Waits until every rank is here. Needs the store alone, and leaves the group usable when it fails. It
  /// does not wait for collectives that are still under way.
  ///
  /// timeout  as that of a collective if not given
  /// throws   MissingRanks (missing_ranks.h) on every rank that came, naming all that did not
  void barrier(std::optional<std::chrono::milliseconds> timeout = std::nullopt) const;

  /// Waits until every rank is here, then drops the connections: no rank sees a peer vanish before its own
  /// end. A second close() does nothing.
  void close();

  /// For collectives and DistributedDataParallel. In a world of one the first call makes the group.
  const c10::intrusive_ptr<c10d::ProcessGroup>& handle() const;

 private:
  struct State;
  explicit ProcessGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace ddprun::ddp
