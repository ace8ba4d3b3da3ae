#include <ddprun/flight/record_collectives.h>

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/flight/watchdog.h>

namespace ddprun::ddp {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// The call as the recorder stores it.
///
/// peer  root, source or destination; -1: none
CollectiveRecord call_of(const char* op, const Tensors& tensors = {}, std::int64_t peer = -1) {
  CollectiveRecord call{.op = op, .peer = static_cast<int>(peer)};
  call.tensors = static_cast<std::int64_t>(tensors.size());
  for (const auto& tensor : tensors) {
    call.elements += tensor.numel();
    call.bytes += tensor.numel() * static_cast<std::int64_t>(tensor.itemsize());  // a sparse one as if dense
  }
  if (tensors.empty()) return call;
  call.dtype = c10::toString(tensors[0].scalar_type());
  call.shape = tensors[0].sizes().vec();
  return call;
}

CollectiveRecord point_to_point(const char* op, const Tensors& tensors, int peer = -1) {
  CollectiveRecord call = call_of(op, tensors, peer);
  call.point_to_point = true;
  return call;
}

using Future = c10::ivalue::Future;

/// The time for works to end by themselves once their backend is aborted.
constexpr std::chrono::milliseconds kAbortedWithin{200};

std::exception_ptr abort_error() {
  return std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, "the process group was aborted"));
}

/// State shared by the works of one recorded group.
struct Recording {
  FlightRecorder::Group group;
  std::vector<int> members;  ///< as ranks of the whole job
  std::shared_ptr<Watchdog> watchdog;
  bool futures_tell;  ///< a work's future completes with its collective: true of Gloo, not of NCCL
  std::mutex mutex = {};
  std::deque<std::pair<FlightRecorder::Id, WorkPtr>> pending = {};
  // -- where futures tell --
  std::condition_variable ended = {};
  int running = 0;                                            ///< collectives whose future is not complete
  std::map<const void*, std::function<void()>> waiting = {};  ///< by future or work: how it fails
  std::atomic<bool> aborted = false;
  std::mutex aborting = {};
  c10d::Backend* backend = nullptr;  ///< null once destroyed

  std::exception_ptr explain(FlightRecorder::Id id, const std::exception_ptr& cause) const {
    if (!futures_tell && !is_of_backend(cause)) {  // over Gloo all count as the backend's
      flight_recorder().set_failed(id);
      return cause;
    }
    return explained(*watchdog, id, members, cause);
  }

  /// Polls the works that do not report their completion. They end in the order of the calls; failures report
  /// themselves.
  void poll() {
    const std::scoped_lock lock(mutex);
    while (!pending.empty() && pending.front().second->isCompleted()) {
      flight_recorder().set_completed(pending.front().first);
      pending.pop_front();
    }
  }

  /// Adds a work to poll whenever another one begins, and in poll_recordings().
  void add(FlightRecorder::Id id, const WorkPtr& work) {
    poll();
    const std::scoped_lock lock(mutex);
    pending.emplace_back(id, work);
  }

  void count(int change) {
    const std::scoped_lock lock(mutex);
    running += change;
    ended.notify_all();
  }

  bool idle_within(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex);
    return ended.wait_for(lock, patience, [this] { return running == 0; });
  }

  /// What abort() calls, unless removed before. False if it has run.
  bool add_waiting(const void* key, std::function<void()> fail) {
    const std::scoped_lock lock(mutex);
    if (!aborted) waiting.emplace(key, std::move(fail));
    return !aborted;
  }
  /// False if abort() has called it.
  bool remove_waiting(const void* key) {
    const std::scoped_lock lock(mutex);
    return waiting.erase(key) > 0;
  }

  /// Also fails, a moment later, whatever still waits: Gloo wakes nobody who waits for the rest of a message.
  void abort() {
    const std::scoped_lock abort_lock(aborting);
    if (backend == nullptr) return;
    backend->abort();
    if (!futures_tell) return;
    idle_within(kAbortedWithin);
    std::unique_lock lock(mutex);
    aborted = true;
    const auto failing = std::exchange(waiting, {});
    lock.unlock();
    for (const auto& [key, fail] : failing) fail();
  }
};

std::mutex recordings_mutex;
auto& recordings = *new std::vector<std::weak_ptr<Recording>>;  // never destroyed, like flight_recorder()

std::atomic<int> not_recorded = 0;  // number of live NotRecorded objects

/// Notes the end of a collective in the recorder, and explains its failure.
class RecordedWork : public c10d::Work {
 public:
  RecordedWork(std::shared_ptr<Recording> recording, FlightRecorder::Id id, WorkPtr inner, bool has_place,
               bool told_by_wait)
      : Work(-1, inner->retrieveOpType()),
        recording_(std::move(recording)),
        id_(id),
        inner_(std::move(inner)),
        future_tells_(recording_->futures_tell && has_place && !told_by_wait),
        passes_(recording_->futures_tell && !has_place) {
    if (future_tells_) {
      recording_->count(1);
      inner_->getFuture()->addCallback([recording = recording_, id](Future& future) {
        recording->count(-1);
        if (recording->aborted) return;  // perhaps long ago
        if (future.hasError())
          recording->explain(id, future.exception_ptr());  // now, because perhaps nobody ever waits
        else
          flight_recorder().set_completed(id);
      });
    } else if (has_place && !told_by_wait) {
      recording_->add(id_, inner_);
    }
  }

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  Tensors result() override { return inner_->result(); }
  void synchronize() override { inner_->synchronize(); }
  void blockCurrentStream() override { inner_->blockCurrentStream(); }
  void abort() override { inner_->abort(); }
  c10::intrusive_ptr<Future> getFutureResult() override { return inner_->getFutureResult(); }
  float getDuration() const override { return inner_->getDuration(); }
  std::uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }

  bool wait(std::chrono::milliseconds timeout) override try {
    if (!future_tells_ && recording_->futures_tell) flight_recorder().set_awaited(id_);
    const bool done = future_tells_ && timeout == kNoTimeout ? wait_unless_aborted()
                      : passes_                              ? pass(timeout)
                                                             : inner_->wait(timeout);
    if (!future_tells_ && recording_->futures_tell) flight_recorder().set_completed(id_);
    return done;
  } catch (...) {
    std::rethrow_exception(recording_->explain(id_, std::current_exception()));
  }

  c10::intrusive_ptr<Future> getFuture() override {
    auto inner = inner_->getFuture();
    if (!future_tells_) return inner;
    auto outer = inner->createInstance(inner->elementType());
    const auto fail = [outer, recording = recording_, id = id_] {
      outer->setError(recording->explain(id, abort_error()));
    };
    if (!recording_->add_waiting(outer.get(), fail)) outer->setError(abort_error());
    inner->addCallback([outer, recording = recording_, id = id_](Future& future) {
      if (!recording->remove_waiting(outer.get())) return;
      if (future.hasError())
        outer->setError(recording->explain(id, future.exception_ptr()));
      else
        outer->markCompleted(future.value(), future.storages());
    });
    return outer;
  }

 private:
  bool wait_unless_aborted() {
    for (;;) try {
        return inner_->wait(std::chrono::milliseconds(100));
      } catch (...) {
        if (inner_->isCompleted()) return inner_->wait();
        if (recording_->aborted) std::rethrow_exception(abort_error());
      }
  }

  /// Waits for a send or receive, until abort().
  bool pass(std::chrono::milliseconds timeout) {
    if (!recording_->add_waiting(this, [inner = inner_] { inner->abort(); }))
      std::rethrow_exception(abort_error());
    const auto forget = c10::make_scope_exit([this] { recording_->remove_waiting(this); });
    if (!inner_->wait(timeout)) std::rethrow_exception(abort_error());
    return true;
  }

  const std::shared_ptr<Recording> recording_;
  const FlightRecorder::Id id_;
  const WorkPtr inner_;
  const bool future_tells_, passes_;
};

class RecordingBackend : public c10d::Backend {
 public:
  RecordingBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<Recording> recording,
                   bool stops_watchdog)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        recording_(std::move(recording)),
        stops_watchdog_(stops_watchdog) {
    setBoundDeviceId(inner_->getBoundDeviceId());
    recording_->backend = inner_.get();
  }
  ~RecordingBackend() override {
    if (recording_->futures_tell && !recording_->idle_within(std::chrono::milliseconds(50))) abort();
    const std::scoped_lock lock(recording_->aborting);
    recording_->backend = nullptr;
    if (!recording_->idle_within({})) inner_.release();  // its destructor would wait for what never ends
  }

  FlightRecorder::Group recorded_group() const { return recording_->group; }
  c10d::Backend& inner() { return *inner_; }

  /// Records everything that start() makes with the inner backend as one collective.
  template <typename Start>
  WorkPtr record(CollectiveRecord call, Start start) {
    if (not_recorded > 0 && !recording_->futures_tell) return start();
    auto& recorder = flight_recorder();
    const bool has_place = !call.point_to_point, told_by_wait = call.told_by_wait;
    const auto id = recorder.begin(recording_->group, std::move(call));
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
    if (work)
      return c10::make_intrusive<RecordedWork>(recording_, id, std::move(work), has_place, told_by_wait);
    recorder.set_completed(id);
    return work;
  }

  void record_barrier(const std::function<bool(const std::function<bool()>& is_in_vain)>& wait) {
    auto& recorder = flight_recorder();
    const auto id = recorder.begin(recording_->group, call_of("barrier"));
    recorder.set_started(id);
    bool came = false;
    try {
      came = wait([this] { return recording_->watchdog->waits_in_vain(); });
    } catch (...) {
      recorder.set_failed(id);
      throw;
    }
    if (!came) std::rethrow_exception(recording_->explain(id, abort_error()));
    recorder.set_completed(id);
  }

  template <typename... Parameters, typename... Arguments>
  WorkPtr record(CollectiveRecord call, WorkPtr (c10d::Backend::*start)(Parameters...),
                 Arguments&&... arguments) {
    return record(std::move(call), [&] { return (*inner_.*start)(arguments...); });
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return record(call_of("broadcast", tensors, options.rootRank), &Backend::broadcast, tensors, options);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return record(call_of("all_reduce", tensors), &Backend::allreduce, tensors, options);
  }
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    // The number of nonzero values may differ between ranks.
    return record(call_of("all_reduce_sparse"), &Backend::allreduce_sparse, tensors, options);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return record(call_of("all_reduce_coalesced", tensors), &Backend::allreduce_coalesced, tensors, options);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return record(call_of("reduce", tensors, options.rootRank), &Backend::reduce, tensors, options);
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    return record(call_of("all_gather", inputs), &Backend::allgather, outputs, inputs, options);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return record(call_of("all_gather_into_tensor", {input}), &Backend::_allgather_base, output, input,
                  options);
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override {
    return record(call_of("all_gather_coalesced", inputs), &Backend::allgather_coalesced, outputs, inputs,
                  options);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    return record(call_of("all_gather_into_tensor_coalesced", inputs),
                  &Backend::allgather_into_tensor_coalesced, outputs, inputs, options);
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    return record(call_of("gather", inputs, options.rootRank), &Backend::gather, outputs, inputs, options);
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override {
    return record(call_of("scatter", outputs, options.rootRank), &Backend::scatter, outputs, inputs, options);
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return record(scattered("reduce_scatter", outputs), &Backend::reduce_scatter, outputs, inputs, options);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return record(scattered("reduce_scatter_tensor", {output}), &Backend::_reduce_scatter_base, output, input,
                  options);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    return record(scattered("reduce_scatter_tensor_coalesced", outputs),
                  &Backend::reduce_scatter_tensor_coalesced, outputs, inputs, options);
  }
  // Ranks may send different amounts.
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes,
                        const c10d::AllToAllOptions& options) override {
    return record(call_of("all_to_all"), &Backend::alltoall_base, output, input, output_sizes, input_sizes,
                  options);
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return record(call_of("all_to_all"), &Backend::alltoall, outputs, inputs, options);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return record(call_of("barrier"), &Backend::barrier, options);
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override {
    record(call_of("monitored_barrier"), [&] {
      inner_->monitoredBarrier(options, wait_all_ranks);  // its error names the ranks
      return WorkPtr();
    });
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return record(point_to_point("send", tensors, to), &Backend::send, tensors, to, tag);
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return record(point_to_point("recv", tensors, from), &Backend::recv, tensors, from, tag);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return record(point_to_point("recv", tensors), &Backend::recvAnysource, tensors, tag);
  }

  // Calls in between are recorded one by one and complete together.
  void startCoalescing() override {
    coalesced_.clear();
    coalescing_ = true;
    inner_->startCoalescing();
  }
  WorkPtr endCoalescing() override {
    coalescing_ = false;
    auto work = inner_->endCoalescing();
    for (const auto id : coalesced_) recording_->add(id, work);
    return work;
  }

  bool supportsCoalescing() const override { return inner_->supportsCoalescing(); }
  bool supportsTimeEstimation() const override { return inner_->supportsTimeEstimation(); }
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
  void abort() override { recording_->abort(); }
  void shutdown() override {
    if (stops_watchdog_) recording_->watchdog->stop();  // before rank 0's store goes
    inner_->shutdown();
  }

 private:
  /// Gloo's work of a reduce-scatter has no future.
  CollectiveRecord scattered(const char* op, const Tensors& outputs) const {
    CollectiveRecord call = call_of(op, outputs);
    call.told_by_wait = recording_->futures_tell;
    return call;
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  const std::shared_ptr<Recording> recording_;
  const bool stops_watchdog_;
  bool coalescing_ = false;
  std::vector<FlightRecorder::Id> coalesced_;
};

}  // namespace

NotRecorded::NotRecorded() { ++not_recorded; }
NotRecorded::~NotRecorded() { --not_recorded; }

void poll_recordings() {
  const std::scoped_lock lock(recordings_mutex);
  for (const auto& entry : recordings)
    if (const auto recording = entry.lock()) recording->poll();
}

void end_waiting() {
  abort_of_cpu_groups()();
  poll_recordings();
  const auto all = (std::scoped_lock(recordings_mutex), recordings);
  for (const auto& entry : all) {
    const auto recording = entry.lock();
    if (!recording || recording->futures_tell) continue;
    const auto pending = (std::scoped_lock(recording->mutex), recording->pending);
    if (!pending.empty()) std::rethrow_exception(recording->explain(pending.front().first, abort_error()));
  }
}

std::function<void()> abort_of_cpu_groups() {
  const std::scoped_lock lock(recordings_mutex);
  return [all = recordings] {
    for (const auto& entry : all)
      if (const auto recording = entry.lock(); recording && recording->futures_tell) recording->abort();
  };
}

c10::intrusive_ptr<c10d::Backend> make_recording_backend(c10::intrusive_ptr<c10d::Backend> inner,
                                                         std::size_t group, std::vector<int> members,
                                                         std::shared_ptr<Watchdog> watchdog,
                                                         bool stops_watchdog) {
  const bool futures_tell = inner->getBackendName() == "gloo";
  const std::shared_ptr<Recording> recording(
      new Recording{group, std::move(members), std::move(watchdog), futures_tell});
  {
    const std::scoped_lock lock(recordings_mutex);
    std::erase_if(recordings, [](const auto& ended) { return ended.expired(); });
    recordings.push_back(recording);
  }
  return c10::make_intrusive<RecordingBackend>(std::move(inner), recording, stops_watchdog);
}

WorkPtr record_as_one(c10d::ProcessGroup& group, c10::DeviceType device, const char* op,
                      const at::Tensor& tensor, const std::function<WorkPtr(c10d::Backend&)>& start) {
  const auto backend = group.getBackend(device);
  auto* const recording = dynamic_cast<RecordingBackend*>(backend.get());
  if (recording == nullptr) return start(*backend);
  auto call = call_of(op, {tensor});
  call.told_by_wait = true;
  return recording->record(std::move(call), [&] { return start(recording->inner()); });
}

WorkPtr record_close(c10d::ProcessGroup& group) {
  const auto backend = group.getBackend(at::kCPU);
  auto* const recording = dynamic_cast<RecordingBackend*>(backend.get());
  if (recording == nullptr) return backend->barrier();
  return recording->record(call_of(kCloseOp), &c10d::Backend::barrier, c10d::BarrierOptions());
}

void record_barrier(c10d::ProcessGroup& group,
                    const std::function<bool(const std::function<bool()>& is_in_vain)>& wait) {
  const auto backend = group.getBackend(at::kCPU);
  auto* const recording = dynamic_cast<RecordingBackend*>(backend.get());
  if (recording == nullptr)
    wait([] { return false; });
  else
    recording->record_barrier(wait);
}

void expect_buckets(c10d::ProcessGroup& group, const std::vector<std::int64_t>& bucket_bytes) {
  for (const auto device : group.getDeviceTypes()) {
    const auto* backend = dynamic_cast<RecordingBackend*>(group.getBackend(device.type()).get());
    if (backend != nullptr) flight_recorder().expect_buckets(backend->recorded_group(), bucket_bytes);
  }
}

}  // namespace ddprun::ddp
