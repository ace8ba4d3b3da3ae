#include <ddprun/data/prefetcher.h>

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
struct Prefetcher::Shared {
  using Result = std::variant<std::shared_ptr<void>, std::exception_ptr>;

  /// Immutable, because a thread may still be loading a batch of the previous epoch.
  struct Epoch {
    std::vector<std::int64_t> indices;
    std::int64_t number = 0;
    std::int64_t batches = 0;
  };

  Shared(Load load_batch, const Options& options)
      : load_batch(std::move(load_batch)),
        options(options),
        window(std::int64_t{options.ahead} * options.threads) {
    if (options.batch_size < 1 || options.threads < 0 || options.ahead < 1)
      throw std::invalid_argument("Loader: expected batch_size >= 1, threads >= 0, ahead >= 1");
  }

  ~Shared() {
    for (auto& thread : threads) thread.request_stop();  // all of them, before any is joined
  }

  std::shared_ptr<void> load(const Epoch& from, std::int64_t number) const {
    const auto size = static_cast<std::int64_t>(from.indices.size());
    const auto begin = number * options.batch_size, end = std::min(begin + options.batch_size, size);
    return load_batch({from.indices.begin() + begin, from.indices.begin() + end}, from.number);
  }

  void run_thread(const std::stop_token& stop) {
    const c10::ParallelGuard serial(true);  // otherwise LibTorch gives each loader thread its own team
    std::unique_lock lock(mutex);
    for (;;) {
      room.wait(lock, stop, [&] { return taken < epoch->batches && taken < consumed + window; });
      if (stop.stop_requested()) return;
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

  const Load load_batch;
  const Options options;
  const std::int64_t window;

  std::mutex mutex;
  std::condition_variable_any room;
  std::condition_variable arrived;
  std::shared_ptr<const Epoch> epoch = std::make_shared<Epoch>();
  std::map<std::int64_t, Result> ready;
  std::int64_t taken = 0, consumed = 0;
  std::vector<std::jthread> threads;  // last: they use the members above
};

Prefetcher::Prefetcher(Load load, const Options& options)
    : shared_(std::make_unique<Shared>(std::move(load), options)) {
  for (int i = 0; i < options.threads; ++i)
    shared_->threads.emplace_back(
        [shared = shared_.get()](const std::stop_token& stop) { shared->run_thread(stop); });
}

Prefetcher::~Prefetcher() = default;

void Prefetcher::start_epoch(std::vector<std::int64_t> indices, std::int64_t epoch,
                             std::int64_t first_batch) {
  const auto batches = batches_of(static_cast<std::int64_t>(indices.size()));
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

std::int64_t Prefetcher::batches_of(std::int64_t examples) const {
  const auto batch = shared_->options.batch_size;
  return shared_->options.drop_last ? examples / batch : (examples + batch - 1) / batch;
}

std::int64_t Prefetcher::batches() const { return shared_->epoch->batches; }

std::int64_t Prefetcher::position() const { return shared_->consumed; }

std::shared_ptr<void> Prefetcher::next() {
  if (shared_->consumed == shared_->epoch->batches) return nullptr;
  if (shared_->threads.empty()) return shared_->load(*shared_->epoch, shared_->consumed++);

  std::unique_lock lock(shared_->mutex);
  shared_->arrived.wait(lock, [&] { return shared_->ready.count(shared_->consumed) != 0; });
  auto result = std::move(shared_->ready.extract(shared_->consumed++).mapped());
  lock.unlock();
  shared_->room.notify_one();
  if (auto* error = std::get_if<std::exception_ptr>(&result)) std::rethrow_exception(*error);
  return std::get<std::shared_ptr<void>>(std::move(result));
}

}  // namespace ddprun::data
