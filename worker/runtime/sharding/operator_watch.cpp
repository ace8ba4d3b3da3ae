#include <ddprun/sharding/operator_watch.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

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

}  // namespace ddprun::ddp
