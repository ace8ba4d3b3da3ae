#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace ddprun::ddp {

/// Which units of a fully sharded module are in memory, and which is fetched next. Pure: told what operators
/// touch, it answers with what to do. All ranks that see the same touches do the same in the same order,
/// which keeps their collectives together.
///
/// The touches of a step (a forward and what follows until the next) are written down; the next step of the
/// same kind is expected to touch the same units in the same order. While it does, the unit after the present
/// one is fetched ahead.
class GatherSchedule {
 public:
  struct Action {
    enum class Kind {
      kFree,   ///< give its memory back
      kFetch,  ///< start to gather it
      kUse,    ///< it must be there now: start to gather it unless that has been done, and wait
    };
    Kind kind;
    std::size_t unit;
    bool operator==(const Action&) const = default;
  };

  /// prefetch  whether a second unit may be in memory
  explicit GatherSchedule(bool prefetch) : limit_(prefetch ? 2 : 1) {}

  /// A forward begins. training and evaluating steps have an order each.
  std::vector<Action> begin_step(bool training);

  /// An operator is about to use the unit. Others are freed to make room, the least recently used first,
  /// except those for which pinned() is true: they may be in use just now.
  std::vector<Action> touch(std::size_t unit, const std::function<bool(std::size_t)>& pinned);

  /// The unit's memory was given back for another reason.
  void freed(std::size_t unit);

  /// True if touch() of the unit would change nothing.
  bool is_current(std::size_t unit) const { return has_current_ && current_ == unit; }

 private:
  void make_room(std::size_t keep, const std::function<bool(std::size_t)>& pinned,
                 std::vector<Action>& actions);
  bool is_resident(std::size_t unit) const;
  void fetch_next(const std::function<bool(std::size_t)>& pinned, std::vector<Action>& actions);

  std::size_t limit_;
  std::vector<std::size_t> resident_;  ///< in memory or being gathered; the least recently used first
  bool has_current_ = false;
  std::size_t current_ = 0;
  std::vector<std::size_t> orders_[2];  ///< of the last step of each kind
  std::vector<std::size_t> seen_;       ///< in this step
  bool training_ = false;
  bool as_expected_ = false;  ///< this step has kept to orders_[training_] so far
};

}  // namespace ddprun::ddp
