#include <ddprun/sharding/gather_schedule.h>

#include <algorithm>
#include <utility>

namespace ddprun::ddp {
namespace {

constexpr std::size_t kLongestOrder = 1 << 20;  // bounds the memory of a program that never begins a step

}  // namespace

std::vector<GatherSchedule::Action> GatherSchedule::begin_step(bool training) {
  if (!seen_.empty()) orders_[training_ ? 1 : 0] = std::exchange(seen_, {});
  training_ = training;
  as_expected_ = true;
  std::vector<Action> actions;
  for (const std::size_t unit : std::exchange(resident_, {})) actions.push_back({Action::Kind::kFree, unit});
  current_.reset();
  if (limit_ > 1) fetch_next([](std::size_t) { return false; }, actions);
  return actions;
}

std::vector<GatherSchedule::Action> GatherSchedule::touch(std::size_t unit,
                                                          const std::function<bool(std::size_t)>& pinned) {
  if (is_current(unit)) return {};
  const auto& order = orders_[training_ ? 1 : 0];
  as_expected_ = as_expected_ && seen_.size() < order.size() && order[seen_.size()] == unit;
  if (seen_.size() < kLongestOrder) seen_.push_back(unit);

  std::vector<Action> actions;
  const auto place = std::find(resident_.begin(), resident_.end(), unit);
  if (place != resident_.end())
    resident_.erase(place);
  else
    make_room(unit, pinned, actions);
  resident_.push_back(unit);
  actions.push_back({Action::Kind::kUse, unit});
  current_ = unit;
  if (as_expected_ && limit_ > 1) fetch_next(pinned, actions);
  return actions;
}

void GatherSchedule::freed(std::size_t unit) {
  std::erase(resident_, unit);
  if (is_current(unit)) current_.reset();
}

void GatherSchedule::make_room(std::size_t keep, const std::function<bool(std::size_t)>& pinned,
                               std::vector<Action>& actions) {
  while (resident_.size() >= limit_) {
    const auto victim = std::find_if(resident_.begin(), resident_.end(),
                                     [&](std::size_t unit) { return unit != keep && !pinned(unit); });
    if (victim == resident_.end()) return;
    actions.push_back({Action::Kind::kFree, *victim});
    resident_.erase(victim);
  }
}

void GatherSchedule::fetch_next(const std::function<bool(std::size_t)>& pinned,
                                std::vector<Action>& actions) {
  const auto& order = orders_[training_ ? 1 : 0];
  const auto begin = order.begin() + static_cast<std::ptrdiff_t>(std::min(seen_.size(), order.size()));
  const auto end = begin + std::min(order.end() - begin, static_cast<std::ptrdiff_t>(limit_ - 1));
  for (auto next = begin; next != end; ++next) {
    if (std::find(resident_.begin(), resident_.end(), *next) != resident_.end()) continue;
    const auto needed = [&](std::size_t unit) {
      return pinned(unit) || std::find(begin, next, unit) != next;
    };
    make_room(current_.value_or(*next), needed, actions);
    if (resident_.size() >= limit_) return;
    actions.push_back({Action::Kind::kFetch, *next});
    resident_.insert(resident_.begin(), *next);  // before the current one, which is freed last
  }
}

}  // namespace ddprun::ddp
