#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <ddprun/group/shared_sum.h>

namespace ddprun::ddp {

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
