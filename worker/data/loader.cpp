#include "worker/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <variant>

namespace ddprun::data {

/// What next() and the loader threads have in common. Threads take batch numbers in turn, at most `window`
/// ahead of the consumer, and put results in by number: so next() hands them out in order and memory stays
/// bounded.
struct Loader::Shared {
  using Result = std::variant<Batch, std::exception_ptr>;

  Shared(const Dataset& dataset, std::vector<std::int64_t> indices, std::int64_t batch_size, int threads)
      : dataset(dataset), indices(std::move(indices)), batch_size(batch_size), window(2 * threads) {
    if (batch_size < 1 || threads < 0)
      throw std::invalid_argument("Loader: expected batch_size >= 1, threads >= 0");
    const auto size = static_cast<std::int64_t>(this->indices.size());
    batches = (size + batch_size - 1) / batch_size;
  }

  ~Shared() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    room.notify_all();
    for (auto& thread : threads) thread.join();
  }

  Batch load(std::int64_t number) const {
    const auto begin = indices.begin() + number * batch_size;
    const auto end = indices.begin() + std::min<std::int64_t>((number + 1) * batch_size, indices.size());
    return dataset.get_batch({begin, end});
  }

  void run_thread() {
    std::unique_lock lock(mutex);
    for (;;) {
      room.wait(lock, [&] { return stopping || taken == batches || taken < consumed + window; });
      if (stopping || taken == batches) return;
      const auto number = taken++;
      lock.unlock();
      Result result;
      try {
        result = load(number);
      } catch (...) {
        result = std::current_exception();
      }
      lock.lock();
      ready.emplace(number, std::move(result));
      arrived.notify_one();
    }
  }

  const Dataset& dataset;
  const std::vector<std::int64_t> indices;
  const std::int64_t batch_size;
  const std::int64_t window;
  std::int64_t batches = 0;

  std::mutex mutex;
  std::condition_variable room, arrived;
  std::map<std::int64_t, Result> ready;
  std::int64_t taken = 0, consumed = 0;
  bool stopping = false;
  std::vector<std::thread> threads;
};

Loader::Loader(const Dataset& dataset, std::vector<std::int64_t> indices, std::int64_t batch_size,
               int threads)
    : shared_(std::make_unique<Shared>(dataset, std::move(indices), batch_size, threads)) {
  for (int i = 0; i < threads; ++i) shared_->threads.emplace_back([this] { shared_->run_thread(); });
}

Loader::~Loader() = default;

std::int64_t Loader::batches() const { return shared_->batches; }

std::optional<Batch> Loader::next() {
  if (shared_->consumed == shared_->batches) return std::nullopt;
  if (shared_->threads.empty()) return shared_->load(shared_->consumed++);

  std::unique_lock lock(shared_->mutex);
  shared_->arrived.wait(lock, [&] { return shared_->ready.count(shared_->consumed) != 0; });
  auto result = std::move(shared_->ready.extract(shared_->consumed++).mapped());
  lock.unlock();
  shared_->room.notify_one();
  if (auto* error = std::get_if<std::exception_ptr>(&result)) std::rethrow_exception(*error);
  return std::get<Batch>(std::move(result));
}

}  // namespace ddprun::data
