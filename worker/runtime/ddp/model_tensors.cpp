#include <ddprun/ddp/model_tensors.h>

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <ddprun/ddp/output_tensors.h>

namespace ddprun::ddp {
namespace {

void collect_sparse_weights(const torch::nn::Module& module, std::vector<at::Tensor>& weights) {
  if (const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module)) {
    if (embedding->options.sparse()) weights.push_back(embedding->weight);
  } else if (const auto* bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module)) {
    if (bag->options.sparse()) weights.push_back(bag->weight);
  }
  for (const auto& child : module.children()) collect_sparse_weights(*child, weights);
}

std::vector<NamedTensor> list(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  std::vector<NamedTensor> result;
  for (const auto& item : tensors) result.push_back({item.key(), item.value()});
  return result;
}

std::vector<NamedTensor> list(const auto& script_tensors) {
  std::vector<NamedTensor> result;
  for (const auto& each : script_tensors) result.push_back({each.name, each.value});
  return result;
}

}  // namespace

ModelTensors::ModelTensors(const torch::nn::Module& module)
    : name(module.name()),
      parameters([&module] { return list(module.named_parameters()); }),
      buffers([&module] { return list(module.named_buffers()); }) {
  collect_sparse_weights(module, sparse);
}

ModelTensors::ModelTensors(const torch::jit::Module& module)
    : name(module.type()->str()),
      parameters([module] { return list(module.named_parameters()); }),
      buffers([module] { return list(module.named_buffers()); }) {}

void visit_script_output(c10::IValue& value, const TensorVisitor& visit) {
  // Containers return their elements as constants, but they belong to this result.
  const auto each = [&](const c10::IValue& element) {
    visit_script_output(const_cast<c10::IValue&>(element), visit);
  };
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTuple()) {
    for (const auto& element : value.toTupleRef().elements()) each(element);
  } else if (value.isList()) {
    for (const auto& element : value.toListRef()) each(element);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) each(entry.value());
  }
}

}  // namespace ddprun::ddp
