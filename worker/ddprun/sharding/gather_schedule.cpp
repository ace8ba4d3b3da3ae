#include <ddprun/sharding/gather_schedule.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

namespace ddprun::ddp {
namespace {

struct Watched {
  OperatorListener* listener;
  std::size_t label;
};

/// One per process, like LibTorch's list of callbacks.
struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<const c10::StorageImpl*, Watched> storages;
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
};

Registry& registry() {
  static auto* const instance = new Registry;  // operators may still run while the process ends
  return *instance;
}

/// The listeners notified of one operator, kept until it ends.
struct Told : at::ObserverContext {
  struct Call {
    OperatorListener* listener;
    std::vector<std::size_t> labels;
  };
  std::vector<Call> calls;

  void add(const Watched& watched) {
    auto call = std::find_if(calls.begin(), calls.end(),
                             [&](const Call& other) { return other.listener == watched.listener; });
    if (call == calls.end()) call = calls.insert(calls.end(), {watched.listener, {}});
    if (std::find(call->labels.begin(), call->labels.end(), watched.label) == call->labels.end())
      call->labels.push_back(watched.label);
  }
};

void look_up(const at::Tensor& tensor, std::unique_ptr<Told>& told) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const auto& storages = registry().storages;
  const auto found = storages.find(tensor.storage().unsafeGetStorageImpl());
  if (found == storages.end()) return;
  if (!told) told = std::make_unique<Told>();
  told->add(found->second);
}

std::unique_ptr<at::ObserverContext> before(const at::RecordFunction& function) {
  std::unique_ptr<Told> told;
  {
    const std::shared_lock lock(registry().mutex);
    for (const c10::IValue& input : function.inputs()) {
      if (input.isTensor()) {
        look_up(input.toTensor(), told);
      } else if (input.isList()) {
        for (const c10::IValue& element : input.toListRef()) {
          if (element.isTensor())
            look_up(element.toTensor(), told);
          else if (!element.isNone())
            break;  // not a list of tensors
        }
      }
    }
  }
  if (told)
    for (const auto& call : told->calls) call.listener->before_operator(call.labels);
  return told;
}

void after(const at::RecordFunction&, at::ObserverContext* context) {
  if (context == nullptr) return;
  for (const auto& call : static_cast<Told*>(context)->calls) call.listener->after_operator(call.labels);
}

constexpr std::size_t kLongestOrder = 1 << 20;  // bounds the memory of a program that never begins a step

}  // namespace

void watch_storage(const c10::StorageImpl* storage, OperatorListener& listener, std::size_t label) {
  const std::unique_lock lock(registry().mutex);
  if (registry().callback == at::INVALID_CALLBACK_HANDLE)
    registry().callback = at::addGlobalCallback(
        at::RecordFunctionCallback(before, after).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  else if (registry().storages.empty())
    at::reenableCallback(registry().callback);
  registry().storages[storage] = {&listener, label};
}

void unwatch_storages(const OperatorListener& listener) {
  const std::unique_lock lock(registry().mutex);
  auto& storages = registry().storages;
  const bool any = !storages.empty();
  std::erase_if(storages, [&](const auto& entry) { return entry.second.listener == &listener; });
  if (any && storages.empty()) at::disableCallback(registry().callback);
}

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
