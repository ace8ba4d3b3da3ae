#include <ddprun/sharding/meta_device.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace ddprun::ddp {
namespace {

// The key that LibTorch leaves free for such modes.
constexpr auto kMode = c10::DispatchKey::TESTING_ONLY_GenericMode;

void call_on_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(kMode);
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (auto& value = (*stack)[stack->size() - arguments.size() + i];
        arguments[i].name() == "device" && value.isNone())
      value = at::Device(at::kMeta);
  op.callBoxed(stack);
}

}  // namespace

MetaDevice::MetaDevice() : guard_(kMode) {}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&call_on_meta>());
}

}  // namespace ddprun::ddp
