#include "worker/models/recompute.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <utility>

namespace ddprun::models {
namespace {

using Part = std::function<at::Tensor(const at::Tensor&)>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A thread's autocast state on a device. Cast weights are not cached: both runs of a part cast each weight
/// once, and an operator that needs gradients must not find a cast made without them.
struct AutocastState {
  static AutocastState current(c10::DeviceType device) {
    namespace autocast = at::autocast;
    return {device, autocast::is_autocast_enabled(device), autocast::get_autocast_dtype(device),
            autocast::is_autocast_cache_enabled()};
  }
  void set() const {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, type);
    at::autocast::set_autocast_cache_enabled(cached);
  }

  c10::DeviceType device;
  bool enabled;
  c10::ScalarType type;
  bool cached;
};

class AutocastGuard {
 public:
  explicit AutocastGuard(const AutocastState& state) : before_(AutocastState::current(state.device)) {
    state.set();
  }
  ~AutocastGuard() { before_.set(); }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  AutocastState before_;
};

/// What backward needs apart from tensors.
struct Saved : torch::CustomClassHolder {
  Saved(Part part, const AutocastState& autocast) : part(std::move(part)), autocast(autocast) {}
  Part part;
  AutocastState autocast;
};

struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<Saved>& saved,
                            const at::Tensor& input, const at::TensorList& parameters) {
    context->saved_data["saved"] = c10::IValue::make_capsule(saved);
    variable_list tensors = {input};
    tensors.insert(tensors.end(), parameters.begin(), parameters.end());
    context->save_for_backward(std::move(tensors));  // autograd checks that nobody changes them in between
    return saved->part(input);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto capsule = context->saved_data["saved"].toCapsule();
    const auto& saved = static_cast<const Saved&>(*capsule);
    auto tensors = context->get_saved_variables();
    const bool input_needs_gradient = context->needs_input_grad(0);
    tensors[0] = tensors[0].detach().requires_grad_(input_needs_gradient);
    at::Tensor output;
    {
      const at::AutoGradMode with_gradients(true);
      const AutocastGuard guard(saved.autocast);
      output = saved.part(tensors[0]);
    }
    variable_list sources;
    for (const auto& tensor : tensors)
      if (tensor.requires_grad()) sources.push_back(tensor);
    const auto found = torch::autograd::grad({output}, sources, gradients, /*retain_graph=*/std::nullopt,
                                             /*create_graph=*/false, /*allow_unused=*/true);
    variable_list result(1);  // the saved value has no gradient
    auto next = found.begin();
    for (const auto& tensor : tensors) result.push_back(tensor.requires_grad() ? *next++ : at::Tensor());
    return result;
  }
};

}  // namespace

at::Tensor recomputed(Part part, const at::Tensor& input, const std::vector<at::Tensor>& parameters) {
  if (!torch::GradMode::is_enabled()) return part(input);
  auto autocast = AutocastState::current(input.device().type());
  autocast.cached = false;
  const AutocastGuard guard(autocast);
  return Recomputed::apply(c10::make_intrusive<Saved>(std::move(part), autocast), input,
                           at::TensorList(parameters));
}

}  // namespace ddprun::models
