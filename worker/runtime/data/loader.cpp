#include <ddprun/data/loader.h>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

namespace ddprun::data {
namespace {

struct Loaded {
  Batch batch;
  std::optional<c10::Event> ready = {};  ///< on a GPU: set when it has arrived
};

Batch pinned(const Batch& batch) {
  return batch.mapped([](const auto& tensor) { return tensor.pin_memory(); });
}

/// Sends a batch to the GPU on a stream of this thread, and finishes it there.
Loaded sent(const Dataset& dataset, const Batch& raw, at::Device device) {
  const c10::impl::VirtualGuardImpl gpu(device.type());
  // One of high priority: a step may be captured on one of the others.
  thread_local const auto stream = gpu.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  const c10::StreamGuard on_stream(stream);
  const auto there =
      pinned(raw).mapped([&](const at::Tensor& tensor) { return tensor.to(device, /*non_blocking=*/true); });
  Loaded loaded{dataset.prepare(there)};
  loaded.ready.emplace(device.type()).record(stream);
  return loaded;
}

}  // namespace

Loader::Loader(const Dataset& dataset, const Options& options)
    : prefetcher_(
          [&dataset, pin = options.pin_memory, device = options.device](const auto& indices,
                                                                        std::int64_t epoch) {
            if (!device.is_cpu())
              return std::make_shared<Loaded>(sent(dataset, dataset.get_raw_batch(indices, epoch), device));
            const auto batch = dataset.get_epoch_batch(indices, epoch);
            return std::make_shared<Loaded>(Loaded{pin ? pinned(batch) : batch});
          },
          {.batch_size = options.batch_size, .threads = options.threads, .ahead = options.ahead}) {}

Loader::Loader(const Dataset& dataset, std::vector<std::int64_t> indices, std::int64_t batch_size,
               int threads, at::Device device)
    : Loader(dataset, {.batch_size = batch_size, .threads = threads, .device = device}) {
  start_epoch(std::move(indices));
}

std::optional<Batch> Loader::next() {
  const auto loaded = std::static_pointer_cast<Loaded>(prefetcher_.next());
  if (!loaded) return std::nullopt;
  if (loaded->ready) {
    const auto device = loaded->batch.input.device();
    const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    loaded->ready->block(stream);
    loaded->batch.mapped([&](const at::Tensor& tensor) {
      tensor.record_stream(stream);  // its memory is reused only after this stream has used it
      return tensor;
    });
  }
  return std::move(loaded->batch);
}

}  // namespace ddprun::data
