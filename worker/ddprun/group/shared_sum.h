#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <ddprun/common/files.h>
#include <ddprun/group/store.h>

namespace ddprun::ddp {

/// Memory shared by the ranks of one host, with a descriptor of each of their processes. It is anonymous:
/// nothing is left when the last of them ends, however it ends. Made in local_all_reduce.cpp.
class SharedMemory {
 public:
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }

  /// Whether that rank's process has ended.
  bool has_ended(int rank) const;

 private:
  friend std::unique_ptr<SharedMemory> share_memory(const StorePtr&, int, int, std::size_t, bool);
  SharedMemory() = default;

  struct Process {
    UniqueFd descriptor;
    bool gone;  // it had ended before it could be opened
  };

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<Process> processes_;  // by rank
};

/// Zero-filled memory for all ranks of a group, which all call it. Returns nullptr, on every rank, if some
/// cannot see each other's processes: on several hosts, in several containers, or where it is forbidden.
std::unique_ptr<SharedMemory> share_memory(const StorePtr& store, int rank, int size, std::size_t bytes,
                                           bool wanted);

/// Sums a tensor over the ranks of one host through shared memory. Piece by piece, each rank copies its data
/// there and adds up all copies; many ranks share the adding, and each copies the sum. The last rank to
/// arrive never waits. Adds in rank order, so that every rank gets the same result.
///
/// Only sleep() blocks. One call at a time; all ranks make the same calls in the same order.
class SharedSum {
 public:
  /// The memory that it needs.
  static std::size_t bytes(int size);

  SharedSum(std::unique_ptr<SharedMemory> memory, int rank, int size);

  /// tensor  dense, contiguous, on the CPU; gets the sum
  /// number  of the call: detects ranks that are out of step
  void begin(const at::Tensor& tensor, std::uint64_t number);

  /// Continues the call as far as the other ranks allow. True once it is finished.
  /// throws  c10::Error, on every rank, if they did not begin the same call; they may begin another
  bool advance();

  /// Why an unfinished call cannot finish, such as "rank 1 has ended"; "" if it can.
  std::string problem() const;
  std::string awaited_rank() const;  ///< "rank 1"

  /// Sleeps until a rank has acted since posts() returned that number, for at most 20 ms.
  void sleep(std::uint32_t posts) const;
  std::uint32_t posts() const;

  /// From any thread: unfinished calls, here and on the other ranks, can no longer finish.
  void leave();
  bool has_left() const;

 private:
  struct Tensor;
  struct Rank;
  struct Board;

  Board& board() const;
  Rank& rank(int of) const;
  std::byte* place(std::size_t index) const;
  std::byte* piece(int of) const;  // one rank's
  std::byte* shared_sum() const;   // with many ranks
  bool is_few() const;
  void put();
  void post();
  bool all_have_put() const;
  void add_up_together(std::size_t bytes);
  void add_up(std::byte* target, std::size_t begin, std::size_t end) const;
  bool is_added_up() const;
  void check_same_call();
  std::size_t piece_bytes() const;

  const std::unique_ptr<SharedMemory> memory_;
  const int rank_, size_;
  at::Tensor tensor_;
  std::size_t offset_ = 0;  // of the piece within the tensor
  std::uint64_t calls_ = 0;
  std::uint64_t pieces_ = 0;  // copied by this rank in all calls
};

/// The all-reduce of a group on one host. Gloo wakes threads for every message, and they compete with
/// training for the CPUs; here the calling thread itself does as much as the other ranks' progress allows,
/// then returns. A background thread does the rest.
class LocalAllReduce {
 public:
  LocalAllReduce(std::unique_ptr<SharedMemory> memory, int rank, int size, std::chrono::milliseconds timeout);
  ~LocalAllReduce();  ///< unfinished calls fail

  /// Whether it supports this call: a sum of one strided tensor of floats or doubles on the CPU. Shorter
  /// types, whose sums depend visibly on the order of additions, stay with Gloo. The same on every rank,
  /// whatever the shapes and strides.
  static bool suits(const std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options);

  /// Callbacks of the result delay later sums; they may start more and wait() for them, but not for their
  /// futures.
  ///
  /// number  counts all of the group's all-reduces, including Gloo's
  c10::intrusive_ptr<c10d::Work> run(const std::vector<at::Tensor>& tensors,
                                     const c10d::AllreduceOptions& options, std::uint64_t number);

  /// Waits until all calls have succeeded or failed. throws  c10::Error in a callback
  void drain();

  /// Fails all unfinished and later calls, here and on the other ranks.
  void abort() { sum_.leave(); }

 private:
  class Call;
  using Lock = std::unique_lock<std::mutex>;

  void finish_calls();
  void advance();
  void fail_if_hopeless();
  void end_first(std::exception_ptr error);
  void tell(Lock& lock);
  void tell_finished(Lock& lock);
  void wait_in_callback(Call& call);

  SharedSum sum_;
  const int rank_;
  const int process_;  // differs in a forked child
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::deque<c10::intrusive_ptr<Call>> calls_;     // unfinished; the first has begun if has_begun_
  std::deque<c10::intrusive_ptr<Call>> finished_;  // but not yet reported
  bool has_begun_ = false;
  std::atomic<std::thread::id> teller_ = {};  // in tell()
  std::string problem_;                       // fails all calls from the first that it failed
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace ddprun::ddp
