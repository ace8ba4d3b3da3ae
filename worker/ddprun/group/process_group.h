#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/common/worker_env.h>

namespace c10d {
class ProcessGroup;
}

namespace ddprun::ddp {

/// Where a rank's tensors live. kAuto: a GPU if the host has one and the plug-in is installed, else the CPU.
enum class DeviceChoice { kAuto, kCpu, kCuda };

/// The backend for CUDA tensors; CPU tensors always use Gloo. kAuto: NCCL if no ranks share a GPU, else Gloo.
enum class BackendChoice { kAuto, kGloo, kNccl };

/// Some ranks did not reach a barrier in time. Thrown on every rank that did, and on latecomers.
class MissingRanks : public std::runtime_error {
 public:
  MissingRanks(const std::string& message, std::vector<int> missing)
      : std::runtime_error(message), ranks(std::move(missing)) {}

  std::vector<int> ranks;  ///< in the whole job, ascending
};

/// The ranks of a job, or some of them, and the connections between them. Copies refer to the same group.
///
/// A group of one has no store, sockets or threads until handle() is called.
///
/// End it with close() on every rank. Without it, as when an exception unwinds, the destructor drops the
/// connections, and pending collectives fail on all ranks. Users of its handle(), such as a
/// DistributedDataParallel or a subgroup, keep what they need alive: destruction order does not matter.
class ProcessGroup {
 public:
  struct Options {
    /// Of one collective. Default: Python's, 30 minutes over Gloo and 10 over NCCL.
    std::optional<std::chrono::milliseconds> timeout = std::nullopt;
    std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);  ///< for all ranks to arrive
    std::chrono::milliseconds notice_after = std::chrono::seconds(5);     ///< log a longer wait
    /// "env://": meet at MASTER_ADDR and MASTER_PORT. "file:///PATH": in a file that all ranks can write and
    /// no other job uses; the last rank to leave removes it. The process's next groups use PATH.1, PATH.2,
    /// ...
    std::string init_method = "env://";
    /// Network interface for the ranks' connections. Empty: GLOO_SOCKET_IFNAME, else loopback on one node,
    /// and on several the interface towards MASTER_ADDR.
    std::string interface = {};
    /// Sum floats and doubles on the CPU through shared memory instead of sockets, if all ranks are on one
    /// host and see each other's processes. DDPRUN_SHARED_MEMORY=0 also turns it off.
    bool shared_memory = true;
    DeviceChoice device = DeviceChoice::kCpu;
    BackendChoice backend = BackendChoice::kAuto;  ///< for CUDA tensors
    /// Polled while this rank waits for others; true ends the wait: connect() and barrier() throw RoundOver
    /// (rounds.h). May be null.
    std::function<bool()> give_up = {};
  };

  /// Meets the other ranks, which pass the same options; a process may do so again, after close() or beside a
  /// living group, if all do. For env://, the launcher hosts the store, or else rank 0, on the launcher's
  /// socket (DDPRUN_STORE_FD) if there is one, until its process ends. Unless device is kCpu, connect
  /// before the first use of autograd or a random generator (cuda_backend.h). Do not open TCP connections in
  /// other threads meanwhile, nor during new_group(): a failing group would shut them down with its own.
  ///
  /// throws  UsageError for a wrong variable or option: DDPRUN_STORE_FD is not a socket bound to MASTER_PORT,
  ///         there is no such interface, no route to MASTER_ADDR, no such init_method, or device and backend
  ///         are unavailable; IoError if the folder of file:// is missing; MissingRanks naming the ranks that
  ///         did not arrive within connect_timeout; c10::Error if rank 0 did not
  static ProcessGroup connect(const WorkerEnv& env, const Options& options);

  int rank() const;  ///< in this group
  int size() const;
  /// Whether there is another rank to exchange with. For tests on a single GPU, DDPRUN_WORLD_OF_ONE=1 makes a
  /// rank alone exchange its gradients and parameters with itself.
  bool communicates() const;
  const std::vector<int>& world_ranks()
      const;                  ///< the members' ranks in the whole job, by rank in this group
  at::Device device() const;  ///< where this rank's module and batches belong

  /// The backend for tensors on device(): "gloo" or "nccl".
  std::string backend() const;

  /// A group of some of this group's ranks. Every rank of this group, member or not, calls it with the same
  /// ranks and in the same order as other new_group() calls.
  ///
  /// ranks    ranks of this group, in any order; the new group numbers them in ascending order
  /// timeout  of a collective of the new group; default: this group's
  /// returns  the group; nullopt on a rank that is not in it
  /// throws   std::invalid_argument, on every rank, if ranks is empty, differs between ranks, or has a
  ///          duplicate or a rank that is not in this group
  std::optional<ProcessGroup> new_group(
      std::vector<int> ranks, std::optional<std::chrono::milliseconds> timeout = std::nullopt) const;

  /// Waits for every rank, but not for running collectives. Uses only the store, and leaves the group usable
  /// when it fails.
  ///
  /// timeout  default: that of a collective
  /// throws   MissingRanks naming the missing ranks, on every rank that came; c10::DistBackendError once one
  ///          is known never to come: it has ended, closed the group, or waits in another collective
  void barrier(std::optional<std::chrono::milliseconds> timeout = std::nullopt) const;

  /// Whether a connection is closed because its rank has ended. Callable from any thread until close().
  bool has_lost_a_rank() const;

  /// Waits for every rank, then drops the connections, so that no rank sees a peer vanish before its own end.
  /// A second close() does nothing.
  void close();

  /// For collectives and DistributedDataParallel. In a one-rank group, the first call creates it.
  const c10::intrusive_ptr<c10d::ProcessGroup>& handle() const;

 private:
  struct State;
  explicit ProcessGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace ddprun::ddp
