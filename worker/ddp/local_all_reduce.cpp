#include "worker/ddp/local_all_reduce.h"

#include <sched.h>

#include <exception>
#include <string>
#include <utility>

#include <ATen/core/ivalue.h>

namespace ddprun::ddp {
namespace {

using Clock = std::chrono::steady_clock;

// So long a call looks whether the others come too: more than the ranks of a balanced step are apart.
constexpr auto kPatience = std::chrono::microseconds(50);

}  // namespace

class LocalAllReduce::Call : public c10d::Work {
 public:
  Call(int rank, std::vector<at::Tensor> tensors, std::chrono::milliseconds timeout)
      : Work(rank, c10d::OpType::ALLREDUCE),
        deadline(Clock::now() + timeout),
        tensors_(std::move(tensors)),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

  const at::Tensor& tensor() const { return tensors_[0]; }
  std::vector<at::Tensor> result() override { return tensors_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

  /// Runs callbacks, which may call for more.
  void tell() {
    if (error)
      future_->setError(error);
    else
      future_->markCompleted(c10::IValue(tensors_));
    finish(error);
  }

  const Clock::time_point deadline;
  std::exception_ptr error;

 private:
  std::vector<at::Tensor> tensors_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

LocalAllReduce::LocalAllReduce(std::unique_ptr<SharedMemory> memory, int rank, int size,
                               std::chrono::milliseconds timeout)
    : sum_(std::move(memory), rank, size),
      rank_(rank),
      timeout_(timeout),
      thread_([this] { finish_calls(); }) {}

LocalAllReduce::~LocalAllReduce() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  sum_.leave();
  changed_.notify_all();
  thread_.join();
}

bool LocalAllReduce::suits(const std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() != 1 || options.reduceOp != c10d::ReduceOp::SUM) return false;
  const auto& tensor = tensors[0];
  const bool full_precision = tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble;
  return full_precision && tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
         tensor.is_contiguous() && tensor.numel() > 0;
}

c10::intrusive_ptr<c10d::Work> LocalAllReduce::run(const std::vector<at::Tensor>& tensors,
                                                   const c10d::AllreduceOptions& options) {
  const auto timeout = options.timeout.count() > 0 ? options.timeout : timeout_;
  const auto call = c10::make_intrusive<Call>(rank_, tensors, timeout);
  Calls finished;
  bool all_finished;
  {
    const std::scoped_lock lock(mutex_);
    calls_.push_back(call);
    const auto until = Clock::now() + kPatience;
    do advance(finished);
    while (!(all_finished = calls_.empty()) && Clock::now() < until && ::sched_yield() == 0);
  }
  if (!all_finished) changed_.notify_all();
  tell(finished);
  return call;
}

void LocalAllReduce::finish_calls() {
  for (std::unique_lock lock(mutex_);;) {
    changed_.wait(lock, [this] { return !calls_.empty() || ending_; });
    if (calls_.empty()) return;
    const auto posts = sum_.posts();
    Calls finished;
    advance(finished);
    if (finished.empty()) fail_in_vain(finished);
    lock.unlock();
    if (finished.empty()) sum_.sleep(posts);
    tell(finished);
    lock.lock();
  }
}

void LocalAllReduce::advance(Calls& finished) {
  for (; !calls_.empty() && !sum_.has_left(); calls_.pop_front(), has_begun_ = false) {
    try {
      if (!std::exchange(has_begun_, true)) sum_.begin(calls_.front()->tensor());
      if (!sum_.advance()) return;
    } catch (...) {
      calls_.front()->error = std::current_exception();
    }
    finished.push_back(calls_.front());
  }
}

/// The first call, if it waits in vain.
void LocalAllReduce::fail_in_vain(Calls& finished) {
  auto why = sum_.why_in_vain();
  if (why.empty() && Clock::now() > calls_.front()->deadline)
    why = sum_.whom_it_waits_for() + " did not come in time";
  if (why.empty()) return;
  sum_.leave();
  calls_.front()->error = std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, "all_reduce: " + why));
  finished.push_back(calls_.front());
  calls_.pop_front();
}

void LocalAllReduce::tell(const Calls& finished) {
  for (const auto& call : finished) call->tell();
}

}  // namespace ddprun::ddp
