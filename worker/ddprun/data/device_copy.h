#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace ddprun::data {

/// A batch of any type on its device, which a loader's thread has copied there. visit(batch, change) calls
/// change(tensor) for each tensor that travels.
template <typename Batch>
struct Loaded {
  Batch batch;
  std::optional<c10::Event> ready = {};  ///< on a GPU: set when it has arrived

  /// On any thread: copies it on a stream of its own, from page-locked memory if `pin`, and calls
  /// finish() there. Does not wait for the device.
  template <typename Visit, typename Finish>
  void send(at::Device device, bool pin, const Visit& visit, const Finish& finish) {
    if (device.is_cpu()) return;
    const c10::impl::VirtualGuardImpl gpu(device.type());
    // One of high priority: a step may be captured on one of the others. One for all threads: the allocator
    // keeps memory for each stream, and a process uses one GPU.
    static const auto stream = gpu.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
    const c10::StreamGuard on_stream(stream);
    visit(batch, [&](at::Tensor& tensor) {
      tensor = (pin && device.is_cuda() ? tensor.pin_memory() : tensor).to(device, /*non_blocking=*/true);
    });
    finish();
    ready.emplace(device.type()).record(stream);
  }

  /// On the thread that uses it: what follows on its current stream waits for the copies, and they for it
  /// before their memory is used again.
  template <typename Visit>
  void receive(const Visit& visit) {
    if (!ready) return;
    std::optional<c10::Stream> current;
    visit(batch, [&](at::Tensor& tensor) {
      if (tensor.is_cpu()) return;
      if (!current) {
        current = c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device());
        ready->block(*current);
      }
      tensor.record_stream(*current);
    });
  }
};

}  // namespace ddprun::data
