#include <ddprun/data/loader.h>

#include <utility>

namespace ddprun::data {

Loader::Loader(const Dataset& dataset, const Options& options)
    : prefetcher_(
          [&dataset, pin = options.pin_memory](const auto& indices, std::int64_t epoch) {
            auto batch = dataset.get_epoch_batch(indices, epoch);
            if (pin) batch = batch.mapped([](const auto& tensor) { return tensor.pin_memory(); });
            return std::make_shared<Batch>(std::move(batch));
          },
          {.batch_size = options.batch_size, .threads = options.threads, .ahead = options.ahead}) {}

Loader::Loader(const Dataset& dataset, std::vector<std::int64_t> indices, std::int64_t batch_size,
               int threads)
    : Loader(dataset, {.batch_size = batch_size, .threads = threads}) {
  start_epoch(std::move(indices));
}

std::optional<Batch> Loader::next() {
  const auto batch = std::static_pointer_cast<Batch>(prefetcher_.next());
  return batch ? std::optional(std::move(*batch)) : std::nullopt;
}

}  // namespace ddprun::data
