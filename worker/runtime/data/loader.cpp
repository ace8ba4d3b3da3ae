#include <ddprun/data/loader.h>

#include <c10/util/ParallelGuard.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <variant>

namespace ddprun::data {

/// State shared by next() and the loader threads. Threads take batch numbers in turn, at most `window` ahead
/// of the consumer, and store results by number, so next() returns them in order and memory stays bounded.
struct Loader::Shared {
  using Result = std::variant<Batch, std::exception_ptr>;

  /// Immutable, because a thread may still be loading a batch of the previous epoch.
  struct Epoch {
    std::vector<std::int64_t> indices;
    std::int64_t number = 0;
    std::int64_t batches = 0;
  };

  Shared(const Dataset& dataset, const Options& options)
      : dataset(dataset), options(options), window(std::int64_t{options.ahead} * options.threads) {
    if (options.batch_size < 1 || options.threads < 0 || options.ahead < 1)
      throw std::invalid_argument("Loader: expected batch_size >= 1, threads >= 0, ahead >= 1");
  }

  ~Shared() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    room.notify_all();
    for (auto& thread : threads) thread.join();
  }

  Batch load(const Epoch& from, std::int64_t number) const {
    const auto size = static_cast<std::int64_t>(from.indices.size());
    const auto begin = number * options.batch_size, end = std::min(begin + options.batch_size, size);
    auto batch =
        dataset.get_epoch_batch({from.indices.begin() + begin, from.indices.begin() + end}, from.number);
    if (options.pin_memory) batch = batch.mapped([](const auto& tensor) { return tensor.pin_memory(); });
    return batch;
  }

  void run_thread() {
    const c10::ParallelGuard serial(true);  // else LibTorch gives each loader thread its own team
    std::unique_lock lock(mutex);
    for (;;) {
      room.wait(lock, [&] { return stopping || (taken < epoch->batches && taken < consumed + window); });
      if (stopping) return;
      const auto number = taken++;
      const auto from = epoch;
      lock.unlock();
      Result result;
      try {
        result = load(*from, number);
      } catch (...) {
        result = std::current_exception();
      }
      lock.lock();
      if (from != epoch) continue;
      ready.emplace(number, std::move(result));
      arrived.notify_one();
    }
  }

  const Dataset& dataset;
  const Options options;
  const std::int64_t window;

  std::mutex mutex;
  std::condition_variable room, arrived;
  std::shared_ptr<const Epoch> epoch = std::make_shared<Epoch>();
  std::map<std::int64_t, Result> ready;
  std::int64_t taken = 0, consumed = 0;
  bool stopping = false;
  std::vector<std::thread> threads;
};

Loader::Loader(const Dataset& dataset, const Options& options)
    : shared_(std::make_unique<Shared>(dataset, options)) {
  for (int i = 0; i < options.threads; ++i)
    shared_->threads.emplace_back([shared = shared_.get()] { shared->run_thread(); });
}

Loader::Loader(const Dataset& dataset, std::vector<std::int64_t> indices, std::int64_t batch_size,
               int threads)
    : Loader(dataset, {.batch_size = batch_size, .threads = threads}) {
  start_epoch(std::move(indices));
}

Loader::~Loader() = default;

void Loader::start_epoch(std::vector<std::int64_t> indices, std::int64_t epoch, std::int64_t first_batch) {
  const auto size = static_cast<std::int64_t>(indices.size());
  const auto batches = (size + shared_->options.batch_size - 1) / shared_->options.batch_size;
  if (first_batch < 0 || first_batch > batches)
    throw std::invalid_argument("Loader: expected a first batch from 0 to " + std::to_string(batches) +
                                ", got " + std::to_string(first_batch));
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->epoch = std::make_shared<Shared::Epoch>(Shared::Epoch{std::move(indices), epoch, batches});
    shared_->ready.clear();
    shared_->taken = shared_->consumed = first_batch;
  }
  shared_->room.notify_all();
}

std::int64_t Loader::batches() const { return shared_->epoch->batches; }

std::int64_t Loader::position() const { return shared_->consumed; }

std::optional<Batch> Loader::next() {
  if (shared_->consumed == shared_->epoch->batches) return std::nullopt;
  if (shared_->threads.empty()) return shared_->load(*shared_->epoch, shared_->consumed++);

  std::unique_lock lock(shared_->mutex);
  shared_->arrived.wait(lock, [&] { return shared_->ready.count(shared_->consumed) != 0; });
  auto result = std::move(shared_->ready.extract(shared_->consumed++).mapped());
  lock.unlock();
  shared_->room.notify_one();
  if (auto* error = std::get_if<std::exception_ptr>(&result)) std::rethrow_exception(*error);
  return std::get<Batch>(std::move(result));
}

}  // namespace ddprun::data
