#include <ddprun/ddp/model_tensors.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <unordered_set>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/types.h>

#include <ddprun/common/text.h>
#include <ddprun/flight/flight_analysis.h>
#include <ddprun/group/collectives.h>

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

std::vector<NamedTensor> select(const std::vector<NamedTensor>& tensors,
                                const std::vector<std::string>& ignore) {
  std::vector<NamedTensor> result;
  std::unordered_set<const void*> seen;
  for (const auto& each : tensors)
    if (std::ranges::find(ignore, each.name) == ignore.end() &&
        seen.insert(each.tensor.unsafeGetTensorImpl()).second)
      result.push_back(each);
  return result;
}

std::string describe(const std::string& kind, const NamedTensor& named) {
  const auto& tensor = named.tensor;
  std::ostringstream text;
  text << kind << ' ' << named.name << ' ' << tensor.sizes() << ' ' << tensor.dtype();
  if (tensor.layout() != torch::kStrided)
    text << ' ' << tensor.layout();
  else if (!tensor.is_contiguous())
    text << " with strides " << tensor.strides();
  if (!tensor.is_cpu()) text << " on " << tensor.device().type();
  if (kind == "parameter" && !tensor.requires_grad()) text << " without gradient";
  return text.str();
}

struct ScaleGradients : torch::autograd::Function<ScaleGradients> {
  static std::vector<at::Tensor> forward(torch::autograd::AutogradContext* context,
                                         const std::optional<at::Tensor>& scale,
                                         const at::TensorList& inputs) {
    context->set_materialize_grads(false);
    if (scale) context->saved_data["scale"] = *scale;
    std::vector<at::Tensor> copies;
    // Copies: a loss that is later changed in place must not be a view of an input.
    for (const auto& input : inputs) copies.push_back(input.clone());
    return copies;
  }

  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext* context,
                                          std::vector<at::Tensor> gradients) {
    const auto scale = context->saved_data.find("scale");
    if (scale != context->saved_data.end())
      for (auto& gradient : gradients)
        if (gradient.defined()) gradient = gradient * scale->second.toTensor();
    gradients.insert(gradients.begin(), at::Tensor());  // for scale
    return gradients;
  }
};

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

bool ReplicatedState::has_trainable() const {
  return std::ranges::any_of(parameters,
                             [](const NamedTensor& named) { return named.tensor.requires_grad(); });
}

std::vector<at::Tensor> ReplicatedState::tensors(bool with_buffers) const {
  std::vector<at::Tensor> result;
  for (const auto& [name, tensor] : parameters) result.push_back(tensor.detach());
  if (with_buffers)
    for (const auto& [name, tensor] : buffers) result.push_back(tensor.detach());
  return result;
}

ReplicatedState replicated_state(const ModelTensors& model, const std::vector<std::string>& ignore) {
  const auto parameters = model.parameters(), buffers = model.buffers();
  for (const auto& name : ignore) {
    const auto is_it = [&](const NamedTensor& each) { return each.name == name; };
    if (std::ranges::none_of(parameters, is_it) && std::ranges::none_of(buffers, is_it))
      throw std::invalid_argument(
          "DistributedDataParallel: expected the names to ignore to be the module's parameters or buffers, "
          "got '" +
          name + "'");
  }
  return {select(parameters, ignore), select(buffers, ignore)};
}

std::vector<at::Tensor> replicated_buffers(const ModelTensors& model,
                                           const std::vector<std::string>& ignore) {
  std::vector<at::Tensor> result;
  for (auto& [name, tensor] : select(model.buffers(), ignore)) result.push_back(tensor);
  return result;
}

std::vector<bool> expect_sparse_gradients(const ModelTensors& model,
                                          const std::vector<at::Tensor>& parameters) {
  std::vector<bool> result;
  for (const auto& parameter : parameters)
    result.push_back(std::ranges::any_of(
        model.sparse, [&](const at::Tensor& weight) { return weight.is_same(parameter); }));
  return result;
}

void check_same_module(const ProcessGroup& group, const ReplicatedState& state) {
  std::vector<std::string> mine, first;  // a line for each tensor, of this rank and of rank 0
  for (const auto& parameter : state.parameters) mine.push_back(describe("parameter", parameter));
  for (const auto& buffer : state.buffers) mine.push_back(describe("buffer", buffer));
  std::istringstream stream(broadcast_from_rank_0(group, joined(mine, "\n")));
  for (std::string line; std::getline(stream, line);) first.push_back(line);
  const auto differs = std::mismatch(mine.begin(), mine.end(), first.begin(), first.end()).second;
  const bool same = mine == first;

  // For each rank, 1 + the index of rank 0's line where it differs, or 0.
  const auto by_rank = all_gather(group, same ? 0 : static_cast<double>(1 + (differs - first.begin())));

  std::vector<int> ranks;
  double where = 0;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank] == 0) continue;
    ranks.push_back(static_cast<int>(rank));
    where = where == 0 ? by_rank[rank] : std::min(where, by_rank[rank]);
  }
  if (ranks.empty()) return;
  const auto line = static_cast<std::size_t>(where) - 1;
  const auto expected = line < first.size() ? first[line] : "no further parameter or buffer";
  std::string message =
      "modules differ between ranks: rank 0 has " + expected + ", unlike " + describe_ranks(ranks);
  if (!same && line < mine.size() && (line >= first.size() || mine[line] != first[line]))
    message += " (this rank, " + std::to_string(group.rank()) + ", has " + mine[line] + ")";
  throw std::invalid_argument(message);
}

void check_suitable(const ReplicatedState& state) {
  if (!state.has_trainable())
    throw std::invalid_argument("expected a module with a parameter that requires a gradient");
  const auto& first = state.parameters.front();
  for (const auto& [name, tensor] : state.parameters) {
    if (tensor.layout() != torch::kStrided)
      throw std::invalid_argument("expected dense parameters, " + name + " is " + c10::str(tensor.layout()));
    if (tensor.device().type() != first.tensor.device().type())
      throw std::invalid_argument("expected all parameters on one kind of device, " + first.name + " is on " +
                                  c10::str(first.tensor.device().type()) + ", " + name + " on " +
                                  c10::str(tensor.device().type()));
  }
}

void scale_gradients(const std::vector<at::Tensor*>& tensors, const at::Tensor& scale) {
  std::vector<at::Tensor> inputs;
  for (const auto* tensor : tensors) inputs.push_back(*tensor);
  auto outputs =
      ScaleGradients::apply(scale.defined() ? std::optional(scale) : std::nullopt, at::TensorList(inputs));
  for (std::size_t i = 0; i < tensors.size(); ++i) *tensors[i] = outputs[i];
}

}  // namespace ddprun::ddp
