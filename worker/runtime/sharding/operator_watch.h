#pragma once

#include <cstddef>
#include <span>

namespace c10 {
struct StorageImpl;
}

namespace ddprun::ddp {

/// Hears of every operator on a watched tensor, in any thread, before and after its kernel runs; also of
/// operators inside operators.
class OperatorListener {
 public:
  /// Must not throw: LibTorch would log the error and run the kernel anyway.
  virtual void before_operator(std::span<const std::size_t> labels) noexcept = 0;
  virtual void after_operator(std::span<const std::size_t> labels) noexcept = 0;

 protected:
  ~OperatorListener() = default;
};

/// Reports operators on tensors with this storage (views included) to the listener, with the label. While
/// anything is watched, every operator of the process pays for a look at its arguments (bench/RESULTS.md).
void watch_storage(const c10::StorageImpl* storage, OperatorListener& listener, std::size_t label);

/// Ends what watch_storage() began. No operator on the listener's tensors may be running.
void unwatch_storages(const OperatorListener& listener);

}  // namespace ddprun::ddp
