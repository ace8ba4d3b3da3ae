#pragma once

// The fake GPU's collectives (fake_gpu.cpp).
#include <ATen/ATen.h>
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

#include <ddprun/group/cuda_plugin.h>
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

/// A collective that has ended, or that a graph will run, which must not be queried.
struct Done final : c10d::Work {
  explicit Done(std::vector<Tensor> results)
      : future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors())) {
    future_->markCompleted(results);
  }
  bool wait(std::chrono::milliseconds) override { return true; }
  bool isCompleted() override {
    if (captured_) throw std::runtime_error("operation not permitted on an event last recorded in a capture");
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  const bool captured_ = graph_here() != nullptr;
};

/// Stands in for NCCL: Gloo does the work on the same memory, at once. Does not notice a lost rank, and
/// leaves arbitrary numbers when aborted.
class FakeNccl final : public c10d::Backend {
 public:
  explicit FakeNccl(const ddp::NcclGroup& group) : Backend(group.rank, group.size) {
    auto options = c10d::ProcessGroupGloo::Options::create(group.timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>("fake_nccl", group.store), group.rank, group.size, options);
  }
  const std::string getBackendName() const override { return "nccl"; }
  void abort() override { *aborted_ = true; }

  Started allreduce(std::vector<Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return collective(tensors, [=, gloo = gloo_, here = on_cpu(tensors)]() mutable {
      return gloo->allreduce(here, options);
    });
  }
  Started broadcast(std::vector<Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    return collective(tensors, [=, gloo = gloo_, here = on_cpu(tensors)]() mutable {
      return gloo->broadcast(here, options);
    });
  }
  Started _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& options) override {
    return collective({output, input},
                      [=, gloo = gloo_, to = on_cpu(output), from = on_cpu(input)]() mutable {
                        return gloo->_allgather_base(to, from, options);
                      });
  }
  Started _reduce_scatter_base(Tensor& output, Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return collective({output, input},
                      [=, gloo = gloo_, to = on_cpu(output), from = on_cpu(input)]() mutable {
                        return gloo->_reduce_scatter_base(to, from, options);
                      });
  }

 private:
  static std::vector<Tensor> on_cpu(const std::vector<Tensor>& tensors) {
    std::vector<Tensor> here;
    for (const auto& tensor : tensors) here.push_back(on_cpu(tensor));
    return here;
  }
  static Tensor on_cpu(const Tensor& tensor) {
    if (!tensor.is_cuda()) throw std::invalid_argument("NCCL: expected a tensor of the GPU");
    return fake::on_cpu(tensor);
  }
  /// The first tensor is its result.
  template <typename Start>
  Started collective(const std::vector<Tensor>& tensors, Start start) {
    done_or_captured([tensors, start, aborted = aborted_]() mutable {
      try {
        start()->wait();
      } catch (const std::exception&) {
        while (!*aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        on_cpu(tensors[0]).fill_(std::nan(""));
      }
    });
    return c10::make_intrusive<Done>(tensors);
  }

  std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
};

}  // namespace ddprun::test::fake
