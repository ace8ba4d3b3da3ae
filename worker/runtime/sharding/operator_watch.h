#pragma once

#include <cstddef>
#include <span>

namespace c10 {
struct StorageImpl;
}

namespace ddprun::ddp {

/// Is notified of every operator on a watched tensor, in any thread, before and after its kernel runs,
/// including operators inside operators.
class OperatorListener {
 public:
  /// Must not throw: LibTorch would log the error and run the kernel anyway.
  virtual void before_operator(std::span<const std::size_t> labels) noexcept = 0;
  virtual void after_operator(std::span<const std::size_t> labels) noexcept = 0;

 protected:
  ~OperatorListener() = default;
};

/// Reports operators on tensors with this storage (views included) to the listener, with the label. While
/// anything is watched, every operator in the process has its arguments inspected (bench/RESULTS.md).
void watch_storage(const c10::StorageImpl* storage, OperatorListener& listener, std::size_t label);

/// Undoes watch_storage(). No operator on the listener's tensors may be running.
void unwatch_storages(const OperatorListener& listener);

}  // namespace ddprun::ddp
