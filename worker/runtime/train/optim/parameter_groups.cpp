#include <ddprun/train/optim/parameter_groups.h>

#include <map>
#include <set>
#include <stdexcept>

#include <ddprun/ddp/model_tensors.h>

namespace ddprun::train {
namespace {

std::string module_of(const std::string& parameter) {
  const auto dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

std::string layer_of(const std::string& parameter) {
  for (std::size_t begin = 0, end = 0; (end = parameter.find('.', begin)) != std::string::npos;
       begin = end + 1)
    if (parameter.find_first_not_of("0123456789", begin) == end) return parameter.substr(0, end);
  return parameter.substr(0, parameter.find('.'));
}

}  // namespace

std::vector<ParameterGroup> group_parameters(const torch::nn::Module& module,
                                             const GroupingOptions& options) {
  const auto parameters = ddp::replicated_state(module, {}).parameters;
  std::set<std::string> with_matrix;
  for (const auto& [name, tensor] : parameters)
    if (tensor.dim() > 1) with_matrix.insert(module_of(name));
  std::vector<ParameterGroup> groups;
  std::string layer;
  double factor = 1;
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const auto& name = parameters[i].name;
    const auto its_layer = options.layer_decay == 1 ? "" : layer_of(name);
    if (groups.empty() || its_layer != layer) {
      if (!groups.empty()) factor *= options.layer_decay;
      layer = its_layer;
      groups.insert(groups.end(), {{{}, factor, std::nullopt},
                                   {{}, factor, options.norm_weight_decay},
                                   {{}, factor, options.bias_weight_decay}});
    }
    const bool norm = options.norm_weight_decay && !with_matrix.contains(module_of(name));
    const bool bias = options.bias_weight_decay && !norm && ("." + name).ends_with(".bias");
    auto& names = groups[groups.size() - (norm ? 2 : bias ? 1 : 3)].names;
    names.insert(names.begin(), name);
  }
  std::erase_if(groups, [](const auto& group) { return group.names.empty(); });
  return groups;
}

std::vector<torch::optim::OptimizerParamGroup> optimizer_groups(const torch::nn::Module& module,
                                                                const std::vector<ParameterGroup>& groups,
                                                                const OptimizerSettings& settings) {
  const auto all = ddp::replicated_state(module, {}).parameters;
  std::map<std::string, torch::Tensor> left;
  for (const auto& [name, tensor] : all) left.emplace(name, tensor);
  std::vector<torch::optim::OptimizerParamGroup> result;
  for (const auto& group : groups) {
    std::vector<torch::Tensor> tensors;
    for (const auto& name : group.names) {
      const auto found = left.extract(name);
      if (found.empty())
        throw std::invalid_argument("parameter groups: expected parameters of the module, each once, got '" +
                                    name + "'");
      tensors.push_back(found.mapped());
    }
    if (tensors.empty()) continue;
    auto own = settings;
    own.lr *= group.lr_factor;
    if (group.weight_decay) own.weight_decay = group.weight_decay;
    const auto like = make_optimizer(own, {torch::optim::OptimizerParamGroup(tensors)});
    result.emplace_back(tensors, like->param_groups()[0].options().clone());
  }
  std::vector<torch::Tensor> others;
  for (const auto& [name, tensor] : all)
    if (left.contains(name)) others.push_back(tensor);
  if (!others.empty()) result.insert(result.begin(), torch::optim::OptimizerParamGroup(others));
  return result;
}

}  // namespace ddprun::train
