#pragma once

#include <cstddef>
#include <span>

namespace c10 {
struct StorageImpl;
}

namespace ddprun::ddp {

/// Learns of every operator that gets a watched tensor, in whichever thread, before its kernel runs and
/// after. Operators inside operators are reported too.
class OperatorListener {
 public:
  /// Must not throw: LibTorch would log the error and run the kernel all the same.
  virtual void before_operator(std::span<const std::size_t> labels) noexcept = 0;
  virtual void after_operator(std::span<const std::size_t> labels) noexcept = 0;

 protected:
  ~OperatorListener() = default;
};

/// From now on, operators on tensors with this storage (so on all views of it) are told to the listener with
/// the label. Costs every operator of the process a look at its arguments, as long as anything is watched
/// (bench/RESULTS.md).
void watch_storage(const c10::StorageImpl* storage, OperatorListener& listener, std::size_t label);

/// Ends what watch_storage() began. No operator on the listener's tensors may be running.
void unwatch_storages(const OperatorListener& listener);

}  // namespace ddprun::ddp
