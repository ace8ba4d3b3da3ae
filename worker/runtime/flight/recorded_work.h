#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <ddprun/flight/flight_recorder.h>
#include <ddprun/flight/watchdog.h>

namespace ddprun::ddp {

/// The exception for the collective that failed so, a c10::DistBackendError; Watchdog::explain() says its
/// message.
std::exception_ptr explained(Watchdog& watchdog, FlightRecorder::Id id, const std::vector<int>& members,
                             const std::exception_ptr& cause);

/// What the works of one recorded group share.
struct Recording {
  FlightRecorder& recorder;
  FlightRecorder::Group group;
  std::vector<int> members;  ///< as numbers of the whole job
  std::shared_ptr<Watchdog> watchdog;
  bool futures_tell;  ///< a work's future completes when the collective does, as with Gloo but not with NCCL

  std::exception_ptr explain(FlightRecorder::Id id, const std::exception_ptr& cause) const {
    return explained(*watchdog, id, members, cause);
  }

  /// For works whose completion nobody tells: looks at those that are pending.
  void keep_looking_at(FlightRecorder::Id id, const c10::intrusive_ptr<c10d::Work>& work);
  void look();

 private:
  std::mutex mutex_;
  std::deque<std::pair<FlightRecorder::Id, c10::intrusive_ptr<c10d::Work>>> pending_;

 public:
  Recording(FlightRecorder& recorder, FlightRecorder::Group group, std::vector<int> members,
            std::shared_ptr<Watchdog> watchdog, bool futures_tell)
      : recorder(recorder),
        group(group),
        members(std::move(members)),
        watchdog(std::move(watchdog)),
        futures_tell(futures_tell) {}
};

/// A backend's work that notes its end in the recorder, and whose failure says who did not come.
class RecordedWork : public c10d::Work {
 public:
  RecordedWork(std::shared_ptr<Recording> recording, FlightRecorder::Id id,
               c10::intrusive_ptr<c10d::Work> inner, bool told_by_wait);

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void synchronize() override { inner_->synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override;
  void blockCurrentStream() override { inner_->blockCurrentStream(); }
  void abort() override { inner_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return inner_->getFutureResult(); }
  float getDuration() const override { return inner_->getDuration(); }
  std::uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }

 private:
  const std::shared_ptr<Recording> recording_;
  const FlightRecorder::Id id_;
  const c10::intrusive_ptr<c10d::Work> inner_;
  const bool future_tells_;
};

}  // namespace ddprun::ddp
