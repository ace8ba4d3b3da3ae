#pragma once

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

/// The all-reduce of a group whose ranks are all on one host. Over Gloo's sockets every message wakes threads
/// that compete with the training for the CPUs; here the threads that call do the work themselves, as far as
/// the other ranks have come, and go on. One thread does what is left when nobody calls.
class LocalAllReduce {
 public:
  LocalAllReduce(std::unique_ptr<SharedMemory> memory, int rank, int size, std::chrono::milliseconds timeout);
  ~LocalAllReduce();  ///< calls that are not finished fail

  /// Whether this call is made here: a sum of one strided tensor of floats or doubles on the CPU. Of shorter
  /// types the order of the additions shows, so they keep Gloo's. The same on every rank, whatever shapes and
  /// strides they bring.
  static bool suits(const std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options);

  /// What callbacks of the result do keeps later sums waiting; they may call for more, but not wait for it.
  ///
  /// number  of the call among all all-reduces of the group, those too that are not made here
  c10::intrusive_ptr<c10d::Work> run(const std::vector<at::Tensor>& tensors,
                                     const c10d::AllreduceOptions& options, std::uint64_t number);

  /// Waits until all calls are finished, well or not.
  void drain();

  /// Calls that are not finished fail, here and on the other ranks, and all later ones.
  void abort() { sum_.leave(); }

 private:
  class Call;
  using Lock = std::unique_lock<std::mutex>;

  void finish_calls();
  void advance();
  void fail_in_vain();
  void end_first(std::exception_ptr error);
  void tell(Lock& lock);

  SharedSum sum_;
  const int rank_;
  const int process_;  // a forked child has no part in this
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::deque<c10::intrusive_ptr<Call>> calls_;     // not finished; the first has begun if has_begun_
  std::deque<c10::intrusive_ptr<Call>> finished_;  // but nobody has been told yet
  bool has_begun_ = false, telling_ = false;
  std::string why_in_vain_;  // all calls, since the first that was
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace ddprun::ddp
