#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

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

/// Decides which units of a fully sharded module are in memory, and which to fetch next. A pure function of
/// the units that operators touch: ranks with the same touches take the same actions in the same order, which
/// keeps their collectives together.
///
/// It records the touches of a step (from one forward to the next), expects the next step of the same kind to
/// touch the same units in the same order, and fetches the next units ahead as long as it does.
class GatherSchedule {
 public:
  struct Action {
    enum class Kind {
      kFree,   ///< free its memory
      kFetch,  ///< start to gather it
      kUse,    ///< gather it now, unless started, and wait
    };
    Kind kind;
    std::size_t unit;
    bool operator==(const Action&) const = default;
  };

  /// prefetch  units that may be in memory besides the one in use
  explicit GatherSchedule(int prefetch) : limit_(1 + static_cast<std::size_t>(prefetch > 0 ? prefetch : 0)) {}

  /// A forward begins. Training and evaluation have separate orders.
  std::vector<Action> begin_step(bool training);

  /// An operator is about to use the unit. Frees others to make room, the least recently used first, except
  /// pinned ones, which may be in use.
  std::vector<Action> touch(std::size_t unit, const std::function<bool(std::size_t)>& pinned);

  /// The unit's memory was freed for another reason.
  void freed(std::size_t unit);

  /// True if touch() of the unit would change nothing.
  bool is_current(std::size_t unit) const { return current_ == unit; }

 private:
  void make_room(std::size_t keep, const std::function<bool(std::size_t)>& pinned,
                 std::vector<Action>& actions);
  void fetch_next(const std::function<bool(std::size_t)>& pinned, std::vector<Action>& actions);

  std::size_t limit_;
  std::vector<std::size_t> resident_;  ///< in memory or being gathered; the least recently used first
  std::optional<std::size_t> current_;
  std::vector<std::size_t> orders_[2];  ///< of the last step of each kind
  std::vector<std::size_t> seen_;       ///< in this step
  bool training_ = false;
  bool as_expected_ = false;  ///< this step has followed orders_[training_] so far
};

}  // namespace ddprun::ddp
