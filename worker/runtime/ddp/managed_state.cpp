#include <ddprun/ddp/managed_state.h>

#include <algorithm>
#include <stdexcept>
#include <unordered_set>

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

namespace ddprun::ddp {
namespace {

using Tensors = torch::OrderedDict<std::string, torch::Tensor>;

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<NamedTensor> select(const Tensors& tensors, const std::vector<std::string>& ignore) {
  std::vector<NamedTensor> result;
  std::unordered_set<const void*> seen;
  for (const auto& item : tensors)
    if (!contains(ignore, item.key()) && seen.insert(item.value().unsafeGetTensorImpl()).second)
      result.push_back({item.key(), item.value()});
  return result;
}

void collect_sparse_weights(const torch::nn::Module& module, std::unordered_set<const void*>& weights) {
  if (const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module)) {
    if (embedding->options.sparse()) weights.insert(embedding->weight.unsafeGetTensorImpl());
  } else if (const auto* bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module)) {
    if (bag->options.sparse()) weights.insert(bag->weight.unsafeGetTensorImpl());
  }
  for (const auto& child : module.children()) collect_sparse_weights(*child, weights);
}

}  // namespace

std::vector<at::Tensor> ManagedState::trainable() const {
  std::vector<at::Tensor> result;
  for (const auto& [name, tensor] : parameters)
    if (tensor.requires_grad()) result.push_back(tensor);
  return result;
}

std::vector<std::string> ManagedState::trainable_names() const {
  std::vector<std::string> result;
  for (const auto& [name, tensor] : parameters)
    if (tensor.requires_grad()) result.push_back(name);
  return result;
}

std::vector<at::Tensor> ManagedState::tensors(bool with_buffers) const {
  std::vector<at::Tensor> result;
  for (const auto& [name, tensor] : parameters) result.push_back(tensor.detach());
  if (with_buffers)
    for (const auto& [name, tensor] : buffers) result.push_back(tensor.detach());
  return result;
}

ManagedState managed_state(const torch::nn::Module& module, const std::vector<std::string>& ignore) {
  const auto parameters = module.named_parameters();
  const auto buffers = module.named_buffers();
  for (const auto& name : ignore)
    if (!parameters.contains(name) && !buffers.contains(name))
      throw std::invalid_argument(
          "DistributedDataParallel: expected parameters and buffers of the module to be ignored, got '" +
          name + "'");
  return {select(parameters, ignore), select(buffers, ignore)};
}

std::vector<at::Tensor> managed_buffers(const torch::nn::Module& module,
                                        const std::vector<std::string>& ignore) {
  std::vector<at::Tensor> result;
  for (auto& [name, tensor] : select(module.named_buffers(), ignore)) result.push_back(tensor);
  return result;
}

std::vector<bool> expect_sparse_gradients(const torch::nn::Module& module,
                                          const std::vector<at::Tensor>& parameters) {
  std::unordered_set<const void*> weights;
  collect_sparse_weights(module, weights);
  std::vector<bool> result;
  for (const auto& parameter : parameters)
    result.push_back(weights.contains(parameter.unsafeGetTensorImpl()));
  return result;
}

}  // namespace ddprun::ddp
