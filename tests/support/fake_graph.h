#pragma once

// The fake GPU's streams, events and CUDA graphs (fake_gpu.cpp): work that reaches a captured stream is
// recorded, with the memory that it uses, and a replay computes exactly that again. Whatever a real graph
// would bake in (host numbers, old inputs, memory that has been reused) is baked in here too. Anything that
// may not be captured fails: waiting for the GPU, and work on other streams.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::test::fake {

constexpr c10::StreamId kDefaultStream = 0;
inline thread_local c10::StreamId current_stream = kDefaultStream;

class Graph {
 public:
  explicit Graph(c10::StreamId stream) : streams_{stream} {}

  void note(std::function<void()> call) { calls_.push_back(std::move(call)); }
  void replay() const {
    for (const auto& call : calls_) call();
  }

  bool captures(c10::StreamId stream) const {
    const std::scoped_lock lock(mutex_);
    return streams_.contains(stream);
  }
  void join(c10::StreamId stream) {
    if (stream == kDefaultStream)
      throw std::runtime_error("operation would make the legacy stream depend on a capturing stream");
    const std::scoped_lock lock(mutex_);
    streams_.insert(stream);
  }

  // A real capture computes nothing. This one computes, for the shapes, then restores all memory.
  void keep(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.storage().nbytes() == 0) return;
    const auto& storage = tensor.storage();
    auto& [kept, bytes] = before_[storage.unsafeGetStorageImpl()];
    if (kept) return;
    kept = std::make_unique<c10::Storage>(storage);
    bytes.assign(begin_of(storage), begin_of(storage) + storage.nbytes());
  }
  void restore() {
    for (const auto& [key, value] : before_)
      std::memcpy(value.first->mutable_data(), value.second.data(), value.second.size());
    before_.clear();
  }

 private:
  static const char* begin_of(const c10::Storage& storage) {
    return static_cast<const char*>(storage.data());
  }

  mutable std::mutex mutex_;
  std::set<c10::StreamId> streams_;
  std::vector<std::function<void()>> calls_;
  std::map<const void*, std::pair<std::unique_ptr<c10::Storage>, std::vector<char>>> before_;
};

struct Capturing {
  std::mutex mutex;
  std::shared_ptr<Graph> graph;  // null: none
};
inline Capturing capturing;

/// The graph that is capturing this thread's stream; null: none
inline std::shared_ptr<Graph> graph_here(c10::StreamId stream = current_stream) {
  const std::scoped_lock lock(capturing.mutex);
  return capturing.graph && capturing.graph->captures(stream) ? capturing.graph : nullptr;
}

inline void forbid_in_capture(const std::string& what) {
  if (graph_here()) throw std::runtime_error("operation not permitted when stream is capturing: " + what);
}

/// Does it, and records it. uses: all memory that it may change
inline void captured(const std::vector<at::Tensor>& uses, const std::function<void()>& call) {
  const auto graph = graph_here();
  if (graph)
    for (const auto& tensor : uses) graph->keep(tensor);
  call();
  if (graph) graph->note(call);
}

inline void set_capturing(std::shared_ptr<Graph> graph) {
  const std::scoped_lock lock(capturing.mutex);
  capturing.graph = std::move(graph);
}

inline std::function<void()> capture(const std::function<void()>& work) {
  if (current_stream == kDefaultStream)
    throw std::runtime_error("CUDA graphs must be captured on a non-default stream.");
  const auto graph = std::make_shared<Graph>(current_stream);
  auto random = at::detail::getDefaultCPUGenerator();
  const auto numbers = random.get_state();
  const auto end = [&] {
    set_capturing(nullptr);
    graph->restore();
    random.set_state(numbers);
  };
  set_capturing(graph);
  try {
    work();
  } catch (...) {
    end();
    throw;
  }
  end();
  return [graph] { graph->replay(); };
}

inline c10::StreamId new_stream() {
  static std::atomic<c10::StreamId> made = kDefaultStream;
  return ++made;
}

/// A result of a stream that appears only once somebody waits for it.
class Late {
 public:
  explicit Late(std::function<void()> appear) : appear_(std::move(appear)) {}
  void wait() {
    const std::scoped_lock lock(mutex_);
    if (const auto appear = std::exchange(appear_, nullptr)) appear();
    there_ = true;
  }
  bool is_there() const { return there_; }

 private:
  std::mutex mutex_;
  std::function<void()> appear_;
  std::atomic<bool> there_ = false;
};
using LateResults = std::vector<std::shared_ptr<Late>>;

struct LateStreams {
  std::mutex mutex;
  std::map<c10::StreamId, LateResults> results;
};
inline LateStreams late_streams;

inline void add_late(c10::StreamId stream, std::function<void()> appear) {
  const std::scoped_lock lock(late_streams.mutex);
  auto& results = late_streams.results[stream];
  std::erase_if(results, [](const auto& result) { return result->is_there(); });
  results.push_back(std::make_shared<Late>(std::move(appear)));
}

inline void wait_for(const LateResults& results) {
  for (const auto& result : results) result->wait();
}

/// Waits for all that the stream has been given. Without one: for all streams
inline void wait_for_stream(std::optional<c10::StreamId> stream = std::nullopt) {
  LateResults all;
  {
    const std::scoped_lock lock(late_streams.mutex);
    for (const auto& [of, results] : late_streams.results)
      if (!stream || of == *stream) all.insert(all.end(), results.begin(), results.end());
  }
  wait_for(all);
}

/// Knows whether it was recorded in a captured stream, and what that stream had been given.
struct Event {
  std::weak_ptr<Graph> graph;
  LateResults results;
};

inline void record_event(void** event, const c10::Stream& stream) {
  if (*event == nullptr) *event = new Event;
  static_cast<Event*>(*event)->graph = graph_here(stream.id());
  const std::scoped_lock lock(late_streams.mutex);
  static_cast<Event*>(*event)->results = late_streams.results[stream.id()];
}

inline void block_on_event(void* event, const c10::Stream& stream) {
  if (event == nullptr) return;
  wait_for(static_cast<Event*>(event)->results);
  const auto of_event = static_cast<Event*>(event)->graph.lock(), of_stream = graph_here(stream.id());
  if (of_stream && of_event != of_stream)
    throw std::runtime_error("dependency created on uncaptured work in another stream");
  std::shared_ptr<Graph> now;
  {
    const std::scoped_lock lock(capturing.mutex);
    now = capturing.graph;
  }
  if (of_event && of_event == now) of_event->join(stream.id());
}

}  // namespace ddprun::test::fake
