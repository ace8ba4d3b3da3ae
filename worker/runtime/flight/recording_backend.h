#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <ddprun/flight/recorded_work.h>

namespace ddprun::ddp {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// The call as the recorder keeps it.
///
/// peer  root, source or destination; -1: none
Collective describe_call(const char* op, const Tensors& tensors, int peer = -1);

/// The same for send and recv.
Collective point_to_point(const char* op, const Tensors& tensors, int peer = -1);

/// Records each collective and passes everything on to the backend that it wraps. keeps_watchdog: its
/// shutdown ends the watchdog.
class RecordingBackend : public c10d::Backend {
 public:
  RecordingBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<Recording> recording,
                   bool keeps_watchdog)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        recording_(std::move(recording)),
        keeps_watchdog_(keeps_watchdog) {
    setBoundDeviceId(inner_->getBoundDeviceId());
  }

  const Recording& recording() const { return *recording_; }

  /// What start() makes with the backend that this wraps is one collective.
  template <typename Start>
  WorkPtr record_as_one(Collective call, Start start) {
    call.told_by_wait = true;
    return record(call, [&] { return start(*inner_); });
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return record(describe_call("broadcast", tensors, static_cast<int>(options.rootRank)),
                  [&] { return inner_->broadcast(tensors, options); });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return record(describe_call("all_reduce", tensors), [&] { return inner_->allreduce(tensors, options); });
  }
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    // How many values are not zero differs between ranks, and rightly so.
    return record(Collective{.op = "all_reduce_sparse"},
                  [&] { return inner_->allreduce_sparse(tensors, options); });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return record(describe_call("all_reduce_coalesced", tensors),
                  [&] { return inner_->allreduce_coalesced(tensors, options); });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return record(describe_call("reduce", tensors, static_cast<int>(options.rootRank)),
                  [&] { return inner_->reduce(tensors, options); });
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    return record(describe_call("all_gather", inputs),
                  [&] { return inner_->allgather(outputs, inputs, options); });
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return record(describe_call("all_gather_into_tensor", {input}),
                  [&] { return inner_->_allgather_base(output, input, options); });
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override {
    return record(describe_call("all_gather_coalesced", inputs),
                  [&] { return inner_->allgather_coalesced(outputs, inputs, options); });
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    return record(describe_call("all_gather_into_tensor_coalesced", inputs),
                  [&] { return inner_->allgather_into_tensor_coalesced(outputs, inputs, options); });
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    return record(describe_call("gather", inputs, static_cast<int>(options.rootRank)),
                  [&] { return inner_->gather(outputs, inputs, options); });
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override {
    return record(describe_call("scatter", outputs, static_cast<int>(options.rootRank)),
                  [&] { return inner_->scatter(outputs, inputs, options); });
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return record(describe_call("reduce_scatter", outputs),
                  [&] { return inner_->reduce_scatter(outputs, inputs, options); });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return record(describe_call("reduce_scatter_tensor", {output}),
                  [&] { return inner_->_reduce_scatter_base(output, input, options); });
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    return record(describe_call("reduce_scatter_tensor_coalesced", outputs),
                  [&] { return inner_->reduce_scatter_tensor_coalesced(outputs, inputs, options); });
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes,
                        const c10d::AllToAllOptions& options) override {
    // Each rank may send as much as it likes.
    return record(Collective{.op = "all_to_all"},
                  [&] { return inner_->alltoall_base(output, input, output_sizes, input_sizes, options); });
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return record(Collective{.op = "all_to_all"}, [&] { return inner_->alltoall(outputs, inputs, options); });
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return record(Collective{.op = "barrier"}, [&] { return inner_->barrier(options); });
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override {
    const auto id = recording_->recorder.begin(recording_->group, Collective{.op = "monitored_barrier"});
    try {
      inner_->monitoredBarrier(options, wait_all_ranks);
    } catch (...) {
      recording_->recorder.set_failed(id);  // it names the ranks itself
      throw;
    }
    recording_->recorder.set_completed(id);
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return record(point_to_point("send", tensors, to), [&] { return inner_->send(tensors, to, tag); });
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return record(point_to_point("recv", tensors, from), [&] { return inner_->recv(tensors, from, tag); });
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return record(point_to_point("recv", tensors), [&] { return inner_->recvAnysource(tensors, tag); });
  }

  // The calls between the two are recorded one by one, and end with the whole.
  void startCoalescing() override {
    coalesced_.clear();
    coalescing_ = true;
    inner_->startCoalescing();
  }
  WorkPtr endCoalescing() override {
    coalescing_ = false;
    auto work = inner_->endCoalescing();
    for (const auto id : coalesced_) recording_->keep_looking_at(id, work);
    return work;
  }

  bool supportsSplitting() const override { return inner_->supportsSplitting(); }
  bool supportsCoalescing() const override { return inner_->supportsCoalescing(); }
  bool supportsTimeEstimation() const override { return inner_->supportsTimeEstimation(); }
  bool supportsShrinking() const override { return inner_->supportsShrinking(); }
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<std::int64_t>& ranks, int flags,
                                           const c10::intrusive_ptr<Options>& options) override {
    return inner_->shrink(ranks, flags, options);
  }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  const std::string getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  std::uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override {
    inner_->registerOnCompletionHook(std::move(hook));
  }
  void waitForPendingWorks() override { inner_->waitForPendingWorks(); }
  void enableCollectivesTiming() override { inner_->enableCollectivesTiming(); }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override {
    return inner_->split(store, ranks, options);
  }
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<Options>& options, const int& rank,
                                          const int& size) override {
    return inner_->merge(store, options, rank, size);
  }
  void setGroupUid(const std::string& uid) override {
    Backend::setGroupUid(uid);
    inner_->setGroupUid(uid);
  }
  void eagerConnectSingleDevice(at::Device device) override { inner_->eagerConnectSingleDevice(device); }
  c10d::ErrorType getError() override { return inner_->getError(); }
  std::shared_ptr<c10::Allocator> getMemAllocator() override { return inner_->getMemAllocator(); }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return inner_->allocateTensor(size, options);
  }
  bool supportsTensorAlloc(c10::DeviceIndex device) override { return inner_->supportsTensorAlloc(device); }
  void abort() override { inner_->abort(); }
  void shutdown() override {
    if (keeps_watchdog_) recording_->watchdog->stop();  // before rank 0's store goes
    inner_->shutdown();
  }

 private:
  template <typename Start>
  WorkPtr record(const Collective& call, Start start) {
    auto& recorder = recording_->recorder;
    const auto id = recorder.begin(recording_->group, call);
    WorkPtr work;
    try {
      work = start();
    } catch (...) {
      recorder.set_failed(id);
      throw;
    }
    recorder.set_started(id);
    if (coalescing_) {
      coalesced_.push_back(id);
      return work;
    }
    const bool told_by_wait = call.point_to_point || call.told_by_wait;
    if (work) return c10::make_intrusive<RecordedWork>(recording_, id, std::move(work), told_by_wait);
    recorder.set_completed(id);
    return work;
  }

  const c10::intrusive_ptr<c10d::Backend> inner_;
  const std::shared_ptr<Recording> recording_;
  const bool keeps_watchdog_;
  bool coalescing_ = false;
  std::vector<FlightRecorder::Id> coalesced_;
};

}  // namespace ddprun::ddp
