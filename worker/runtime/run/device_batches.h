#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>
#include <optional>
#include <utility>

#include <ddprun/ddp/model_tensors.h>

namespace ddprun {

/// Copies batches to the device. On a GPU the next one is copied while the current one is in use: from
/// page-locked memory, on a separate stream.
template <typename Batch>
class DeviceBatches {
 public:
  explicit DeviceBatches(at::Device device) : device_(device) {
    // Those of high priority: a step may be captured on one of the others.
    if (!device.is_cpu()) stream_ = guard().getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  }

  /// In page-locked memory, if for a GPU and pin_memory is true.
  std::shared_ptr<Batch> prepared(Batch batch, bool pin_memory) const {
    if (pin_memory && device_.is_cuda())
      visit_defined(batch, [](at::Tensor& tensor) { tensor = tensor.pin_memory(); });
    return std::make_shared<Batch>(std::move(batch));
  }

  /// Forgets batches copied ahead.
  void start() { ahead_.reset(); }

  /// load  returns the next batch; nullptr after the last
  template <typename Load>
  std::shared_ptr<Batch> next(const Load& load) {
    if (!stream_) return load();
    auto batch = ahead_ ? std::move(*ahead_) : copied(load());
    if (batch == nullptr) return batch;
    const auto current = guard().getStream(device_);
    c10::Event copied_it(device_.type());
    copied_it.record(*stream_);
    copied_it.block(current);
    visit_defined(*batch,
                  [&](at::Tensor& tensor) { tensor.record_stream(current); });  // reused only after it
    ahead_ = copied(load());
    return batch;
  }

 private:
  template <typename Visit>
  static void visit_defined(Batch& batch, const Visit& visit) {
    ddp::visit_output(batch, [&](at::Tensor& tensor) {
      if (tensor.defined()) visit(tensor);
    });
  }

  c10::impl::VirtualGuardImpl guard() const { return c10::impl::VirtualGuardImpl(device_.type()); }

  std::shared_ptr<Batch> copied(std::shared_ptr<Batch> batch) const {
    const c10::StreamGuard on_it(*stream_);
    if (batch)
      visit_defined(*batch, [&](at::Tensor& tensor) { tensor = tensor.to(device_, /*non_blocking=*/true); });
    return batch;
  }

  at::Device device_;
  std::optional<c10::Stream> stream_;
  std::optional<std::shared_ptr<Batch>> ahead_;
};

}  // namespace ddprun
