#include <ddprun/sharding/meta_device.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <vector>

namespace ddprun::ddp {
namespace {

using torch::jit::Stack;
using Memory = const c10::StorageImpl*;
using Storages = std::map<Memory, c10::Storage>;  // by the memory they stand in for

// The key that LibTorch reserves for such modes.
constexpr auto kMode = c10::DispatchKey::TESTING_ONLY_GenericMode;

Memory memory_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

/// The last values, with change(tensor) for each tensor among them and in their lists.
template <typename Change>
Stack map_tensors(const Stack& values, std::size_t last, const Change& change) {
  const auto map_one = [&](const c10::IValue& value) -> c10::IValue {
    return value.isTensor() && value.toTensor().defined() ? change(value.toTensor()) : value;
  };
  Stack mapped;
  for (auto i = values.size() - last; i < values.size(); ++i) {
    mapped.push_back(values[i].isList() ? c10::IValue(values[i].toList().copy()) : map_one(values[i]));
    if (!values[i].isList()) continue;
    auto list = mapped.back().toList();
    for (std::size_t j = 0; j < list.size(); ++j) list.set(j, map_one(list.get(j)));
  }
  return mapped;
}

at::Tensor with_memory(const at::Tensor& tensor, Storages& storages) {
  if (!tensor.is_meta()) return tensor;
  auto& storage = storages[memory_of(tensor)];
  if (!storage)
    storage = at::zeros({static_cast<std::int64_t>(tensor.storage().nbytes())}, at::kByte).storage();
  return at::empty({0}, tensor.options().device(at::kCPU))
      .set_(storage, tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

/// A call of an operator.
struct Call {
  c10::OperatorHandle op;
  Stack arguments;
  std::vector<at::Tensor> results = {};
  std::set<Memory> used = {};
  at::Generator source = at::detail::getDefaultCPUGenerator();
  at::Tensor random = {};  ///< the generator's state before, if it draws numbers

  void run(Storages& storages) const {
    auto stack = map_tensors(arguments, arguments.size(),
                             [&](const at::Tensor& each) { return with_memory(each, storages); });
    op.callBoxed(stack);
    auto result = results.begin();
    map_tensors(stack, stack.size(), [&](const at::Tensor& made) {
      const auto& meta = *result++;
      const bool in_place = !meta.is_meta() || storages.contains(memory_of(meta));
      return in_place ? made : with_memory(meta, storages).copy_(made);
    });
  }
};

thread_local std::vector<Call>* calls = nullptr;

void call_on_meta(const c10::OperatorHandle& op, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(kMode);
  const auto& arguments = op.schema().arguments();
  Call call{op, {}};
  // FullyShardedDataParallel replaces the storage of the module's own tensors.
  const auto alias = [&](const at::Tensor& each) {
    if (each.is_meta()) call.used.insert(memory_of(each));
    return each.is_meta() ? each.detach() : each;
  };
  if (calls != nullptr) call.arguments = map_tensors(*stack, arguments.size(), alias);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto& value = (*stack)[stack->size() - arguments.size() + i];
    if (value.isGenerator()) call.source = value.toGenerator();
    if (arguments[i].name() == "device" && value.isNone()) value = at::Device(at::kMeta);
  }
  if (calls != nullptr && op.hasTag(at::Tag::nondeterministic_seeded)) call.random = call.source.get_state();
  op.callBoxed(stack);
  if (calls == nullptr) return;
  map_tensors(*stack, op.schema().returns().size(),
              [&](const at::Tensor& each) { return call.results.emplace_back(alias(each)); });
  if (call.used.empty()) return;
  if (Storages unused; call.random.defined()) call.run(unused);  // advances the generator
  calls->push_back(std::move(call));
}

}  // namespace

MetaDevice::MetaDevice() : guard_(kMode) {}

struct DeferredInit::Record {
  std::vector<Call> calls;
  std::map<std::string, at::Tensor> tensors;
};

DeferredInit::DeferredInit() : record_(std::make_shared<Record>()) {}

std::shared_ptr<void> DeferredInit::record() {
  calls = &record_->calls;
  return {new MetaDevice, [](MetaDevice* meta) {
            delete meta;
            calls = nullptr;
          }};
}

void DeferredInit::add_names(const torch::nn::Module& module) {
  for (const auto& tensors : {module.named_parameters(), module.named_buffers()})
    for (const auto& item : tensors) record_->tensors[item.key()] = item.value().detach();
}

void DeferredInit::operator()(const std::string& name, at::Tensor& values) const {
  const at::NoGradGuard no_grad;
  const auto& wanted = record_->tensors.at(name);
  std::set<Memory> needed = {memory_of(wanted)};
  std::deque<const Call*> needed_calls;
  std::for_each(record_->calls.rbegin(), record_->calls.rend(), [&](const Call& call) {
    if (std::ranges::none_of(call.used, [&](Memory each) { return needed.contains(each); })) return;
    needed.insert(call.used.begin(), call.used.end());
    needed_calls.push_front(&call);
  });
  Storages storages;
  for (const auto* call : needed_calls) {
    auto source = call->source;
    const auto state = source.get_state();
    if (call->random.defined()) source.set_state(call->random);
    call->run(storages);
    source.set_state(state);
  }
  values.copy_(with_memory(wanted, storages));
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&call_on_meta>());
}

}  // namespace ddprun::ddp
