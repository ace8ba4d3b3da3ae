#include <ddprun/data/loader.h>

#include <torch/types.h>

#include <ddprun/data/device_copy.h>

namespace ddprun::data {
namespace {

const auto visit = [](Batch& batch, const auto& change) {
  batch = batch.mapped([&](at::Tensor tensor) {
    change(tensor);
    return tensor;
  });
};

}  // namespace

Loader::Loader(const Dataset& dataset, const Options& options)
    : prefetcher_(
          [&dataset, pin = options.pin_memory, device = options.device](const auto& indices,
                                                                        std::int64_t epoch) {
            const bool travels = !device.is_cpu();
            auto loaded = std::make_shared<Loaded<Batch>>(Loaded<Batch>{
                travels ? dataset.get_raw_batch(indices, epoch) : dataset.get_epoch_batch(indices, epoch)});
            auto& batch = loaded->batch;
            if (!travels && pin) visit(batch, [](at::Tensor& tensor) { tensor = tensor.pin_memory(); });
            loaded->send(device, /*pin=*/true, visit, [&] { batch = dataset.prepare(batch); });
            return loaded;
          },
          {.batch_size = options.batch_size, .threads = options.threads, .ahead = options.ahead}) {}

Loader::Loader(const Dataset& dataset, std::vector<std::int64_t> indices, std::int64_t batch_size,
               int threads, at::Device device)
    : Loader(dataset, {.batch_size = batch_size, .threads = threads, .device = device}) {
  start_epoch(std::move(indices));
}

std::optional<Batch> Loader::next() {
  const auto loaded = std::static_pointer_cast<Loaded<Batch>>(prefetcher_.next());
  if (!loaded) return std::nullopt;
  loaded->receive(visit);
  return std::move(loaded->batch);
}

}  // namespace ddprun::data
