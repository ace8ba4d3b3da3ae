#include <ddprun/ddp/backward_end.h>

#include <torch/csrc/autograd/engine.h>

namespace ddprun::ddp {

BackwardEnd::BackwardEnd(const std::vector<at::Tensor>& parameters, std::function<void()> function) {
  for (const auto& parameter : parameters)
    hooks_.emplace_back(parameter, parameter.register_hook([this, function](const at::Tensor&) {
      if (armed_.exchange(false)) torch::autograd::Engine::get_default_engine().queue_callback(function);
    }));
}

BackwardEnd::~BackwardEnd() {
  for (const auto& [parameter, position] : hooks_) parameter.remove_hook(position);
}

}  // namespace ddprun::ddp
