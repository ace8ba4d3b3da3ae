#pragma once

// The fake GPU's collectives (fake_gpu.cpp).
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ddprun/group/cuda_backend.h>
#include "tests/support/fake_graph.h"

namespace ddprun::test::fake {

using at::Tensor;
using Started = c10::intrusive_ptr<c10d::Work>;

/// The same memory as a CPU tensor.
inline Tensor on_cpu(const Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  if (tensor.numel() == 0)  // a kernel may make more of it
    return at::empty_strided(tensor.sizes(), tensor.strides(),
                             tensor.options().device(at::kCPU).requires_grad(false));
  return at::from_blob(tensor.unsafeGetTensorImpl()->mutable_data(), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU).requires_grad(false));
}

/// What dump_nccl_trace() tells.
inline std::string groups_made;

/// A collective that runs on NCCL's stream, or that a graph will run, which must not be queried.
class NcclWork final : public c10d::Work {
 public:
  /// gloo  null: captured
  NcclWork(const std::vector<Tensor>& results, const c10::Stream& stream, Started gloo)
      : gloo_(std::move(gloo)), device_(stream.device()) {
    ended_.record(stream);
    const c10::MultiStreamGuard on_stream(stream);
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), std::vector{device_});
    future_->markCompleted(results);  // at once, for streams that wait for its event
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  void synchronize() override { ended_.block(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(device_)); }
  bool isCompleted() override {
    if (!gloo_) throw std::runtime_error("operation not permitted on an event last recorded in a capture");
    return gloo_->isCompleted();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  const Started gloo_;
  const c10::Device device_;
  c10::Event ended_{c10::kCUDA};
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// Stands in for NCCL: Gloo does the work, on a stream of its own. The result is there only for those who
/// wait for the work or its future, as for a GPU; the others find NaN. Does not notice a lost rank, and
/// leaves arbitrary numbers when aborted.
class FakeNccl final : public c10d::Backend {
 public:
  explicit FakeNccl(const ddp::NcclGroup& group) : Backend(group.rank, group.size), name_(group.name) {
    if (group.split_from) dynamic_cast<FakeNccl&>(*group.split_from).split(name_);
    groups_made += name_ + ": ranks";
    for (const int rank : group.world_ranks) groups_made += " " + std::to_string(rank);
    groups_made += ", " + std::to_string(group.timeout.count() / 1000) + " s\n";
    auto options = c10d::ProcessGroupGloo::Options::create(group.timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>("fake_nccl", group.store), group.rank, group.size, options);
  }
  /// As with NCCL, all its ranks must call it.
  void split(const std::string& into) {
    gloo_->barrier()->wait(std::chrono::seconds(10));
    groups_made += name_ + " is split into " + into + "\n";
  }
  const std::string getBackendName() const override { return "nccl"; }
  void abort() override { *aborted_ = true; }

  Started allreduce(std::vector<Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return collective(tensors, {}, [options](auto& gloo, auto& results, auto&) {
      return gloo.allreduce(results, options);
    });
  }
  Started broadcast(std::vector<Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    return collective(tensors, {}, [options](auto& gloo, auto& results, auto&) {
      return gloo.broadcast(results, options);
    });
  }
  Started _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& options) override {
    return collective({output}, {input}, [options](auto& gloo, auto& results, auto& inputs) {
      return gloo._allgather_base(results[0], inputs[0], options);
    });
  }
  Started _reduce_scatter_base(Tensor& output, Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return collective({output}, {input}, [options](auto& gloo, auto& results, auto& inputs) {
      return gloo._reduce_scatter_base(results[0], inputs[0], options);
    });
  }

 private:
  static std::vector<Tensor> on_cpu(const std::vector<Tensor>& tensors) {
    std::vector<Tensor> here;
    for (const auto& tensor : tensors) {
      if (!tensor.is_cuda()) throw std::invalid_argument("NCCL: expected a tensor of the GPU");
      here.push_back(fake::on_cpu(tensor));
    }
    return here;
  }

  template <typename Start>
  Started collective(const std::vector<Tensor>& results, const std::vector<Tensor>& inputs, Start start) {
    const auto device = results.at(0).device();
    const c10::Stream stream(c10::Stream::UNSAFE, device, stream_);
    c10::Event launched(c10::kCUDA);
    launched.record(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(device));
    launched.block(stream);
    if (const auto graph = graph_here()) {  // other ranks' captures may end before they get here
      graph->note([=, gloo = gloo_, aborted = aborted_] {
        auto here = on_cpu(results), from = on_cpu(inputs);
        finish(start(*gloo, here, from), here, *aborted);
      });
      return c10::make_intrusive<NcclWork>(results, stream, nullptr);
    }
    const auto here = on_cpu(results);
    auto made = copies(here), from = copies(on_cpu(inputs));
    for (const auto& result : here)
      if (result.is_floating_point()) result.fill_(std::nan(""));
    const auto work = start(*gloo_, made, from);
    add_late(stream_, [=, tensors = results, aborted = aborted_] {
      finish(work, made, *aborted);
      for (std::size_t i = 0; i < made.size(); ++i) here[i].copy_(made[i]);
    });
    return c10::make_intrusive<NcclWork>(results, stream, work);
  }

  static std::vector<Tensor> copies(const std::vector<Tensor>& tensors) {
    std::vector<Tensor> made;
    for (const auto& tensor : tensors) made.push_back(tensor.clone());
    return made;
  }

  static void finish(const Started& work, const std::vector<Tensor>& results,
                     const std::atomic<bool>& aborted) {
    try {
      work->wait();
    } catch (const std::exception&) {
      while (!aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      for (const auto& result : results) result.fill_(std::nan(""));
    }
  }

  const std::string name_;
  const c10::StreamId stream_ = new_stream();
  std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
};

}  // namespace ddprun::test::fake
