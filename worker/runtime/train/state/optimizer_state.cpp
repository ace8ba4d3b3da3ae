#include <ddprun/train/state/optimizer_state.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <torch/types.h>

#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/sharding/zero_optimizer.h>
#include <ddprun/train/optim/optimizer_kinds.h>

namespace ddprun::train {
namespace {

using c10::IValue;
using c10::impl::GenericDict;
using ddp::ZeroOptimizer;
using torch::Tensor;
using torch::optim::Optimizer;
using Betas = std::tuple<double, double>;
using NamedTensors = ZeroOptimizer::NamedTensors;

GenericDict make_dict(const c10::TypePtr& key_type) { return GenericDict(key_type, c10::AnyType::get()); }

struct OptionsWriter {
  GenericDict group = make_dict(c10::StringType::get());

  void operator()(const char* key, double value) { group.insert(key, value); }
  void operator()(const char* key, bool value) { group.insert(key, value); }
  void operator()(const char* key, const Betas& value) {
    group.insert(key, c10::ivalue::Tuple::create({std::get<0>(value), std::get<1>(value)}));
  }
  void fixed(const char* key, const IValue& value) { group.insert(key, value); }
};

struct StateWriter {
  NamedTensors tensors;

  void operator()(const char* key, std::int64_t step) {
    tensors.emplace_back(key, torch::full({}, static_cast<double>(step), torch::kFloat32));
  }
  void operator()(const char* key, const Tensor& tensor, bool /*required*/) {
    if (tensor.defined()) tensors.emplace_back(key, tensor);
  }
};

/// For every parameter of all groups what this process has of its state.
template <typename Kind>
std::vector<NamedTensors> named_states(Optimizer& optimizer) {
  std::vector<NamedTensors> result;
  for (auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) {
      StateWriter writer;
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found != optimizer.state().end())
        Kind::state(static_cast<typename Kind::State&>(*found->second),
                    static_cast<typename Kind::Options&>(group.options()), writer);
      result.push_back(std::move(writer.tensors));
    }
  return result;
}

GenericDict state_of(const std::vector<NamedTensors>& all) {
  auto state = make_dict(c10::IntType::get());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].empty()) continue;
    auto entry = make_dict(c10::StringType::get());
    for (const auto& [name, tensor] : all[i]) entry.insert(name, tensor);
    state.insert(static_cast<std::int64_t>(i), entry);
  }
  return state;
}

template <typename Kind>
c10::impl::GenericList groups_of(Optimizer& optimizer) {
  c10::impl::GenericList groups(c10::AnyType::get());
  std::int64_t next_index = 0;
  for (auto& group : optimizer.param_groups()) {
    OptionsWriter writer;
    Kind::options(static_cast<typename Kind::Options&>(group.options()), writer);
    c10::impl::GenericList indices(c10::AnyType::get());
    for (std::size_t i = 0; i < group.params().size(); ++i) indices.push_back(next_index++);
    writer.group.insert("params", indices);
    groups.push_back(writer.group);
  }
  return groups;
}

/// A dict of the file and where in it that is; names both when something is not as expected.
struct Place {
  const std::filesystem::path& source;
  std::string where;
  GenericDict dict;

  Place(const std::filesystem::path& file, std::string place, const IValue& value)
      : source(file), where(std::move(place)), dict(make_dict(c10::AnyType::get())) {
    if (!value.isGenericDict()) fail("expected a dict, got " + value.tagKind());
    dict = value.toGenericDict();
  }
  [[noreturn]] void fail(const std::string& message) const { throw IoError(source, where + ": " + message); }
  [[noreturn]] void fail(const char* key, const char* expected, const IValue& got) const {
    fail(std::string("'") + key + "': expected " + expected + ", got " + got.tagKind());
  }

  bool has(const char* key) const { return dict.contains(key) && !dict.at(key).isNone(); }
  IValue at(const char* key) const {
    if (!dict.contains(key)) fail(std::string("expected '") + key + "', got none");
    return dict.at(key);
  }
  c10::impl::GenericList list(const char* key) const {
    const auto value = at(key);
    if (!value.isList()) fail(key, "a list", value);
    return value.toList();
  }
};

std::optional<double> to_number(const IValue& value) {
  if (value.isDouble()) return value.toDouble();
  if (value.isInt()) return static_cast<double>(value.toInt());
  if (value.isTensor() && value.toTensor().numel() == 1) return value.toTensor().item<double>();
  return std::nullopt;
}

struct OptionsReader {
  const Place& group;

  void operator()(const char* key, double& value) const {
    const auto found = group.at(key);
    const auto number = to_number(found);
    if (!number) group.fail(key, "a number", found);
    value = *number;
  }
  void operator()(const char* key, bool& value) const {
    const auto found = group.at(key);
    if (!found.isBool()) group.fail(key, "a bool", found);
    value = found.toBool();
  }
  void operator()(const char* key, Betas& value) const {
    const auto found = group.at(key);
    std::vector<IValue> both;
    if (found.isTuple()) both = found.toTupleRef().elements().vec();
    if (found.isList()) both = found.toList().vec();
    const auto first = both.size() == 2 ? to_number(both[0]) : std::nullopt;
    const auto second = both.size() == 2 ? to_number(both[1]) : std::nullopt;
    if (!first || !second) group.fail(key, "two numbers", found);
    value = {*first, *second};
  }
  void fixed(const char* key, const IValue&) const {
    if (std::string_view(key) == "maximize" && group.has(key) && group.at(key).isBool() &&
        group.at(key).toBool())
      group.fail("'maximize': expected False, got True");
  }
};

struct StateReader {
  const Place& entry;
  const Tensor& parameter;
  bool keep;  ///< whether the state is ours; it is checked in any case

  void operator()(const char* key, std::int64_t& step) const {
    const auto found = entry.at(key);
    const auto number = to_number(found);
    if (!number) entry.fail(key, "a number", found);
    step = static_cast<std::int64_t>(*number);
  }
  void operator()(const char* key, Tensor& tensor, bool required) const {
    if (!required && !entry.has(key)) return;
    const auto found = entry.at(key);
    if (!found.isTensor()) entry.fail(key, "a tensor", found);
    const auto value = found.toTensor();
    if (value.sizes() != parameter.sizes()) {
      std::ostringstream text;
      text << '\'' << key << "': expected shape " << parameter.sizes() << ", got " << value.sizes();
      entry.fail(text.str());
    }
    if (keep) tensor = torch::empty_like(parameter.detach()).copy_(value);
  }
};

/// The optimizer whose group this is, by the option that only it has; ours where it may be either of two.
std::string kind_of_group(const Place& group, const char* ours) {
  if (group.has("nesterov")) return Sgd::kName;
  if (group.has("alpha")) return RmsProp::kName;
  if (group.has("lr_decay")) return Adagrad::kName;
  if (group.has("rho")) return AdadeltaKind::kName;
  if (!group.has("amsgrad")) return "another optimizer";
  if (group.has("decoupled_weight_decay") && group.at("decoupled_weight_decay").isBool())
    return group.at("decoupled_weight_decay").toBool() ? AdamW::kName : Adam::kName;
  return ours == std::string_view(AdamW::kName) ? AdamW::kName : Adam::kName;  // before torch 2.8
}

/// What a state dict gives to an optimizer, complete before anything is changed.
struct Loaded {
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
  std::vector<std::pair<void*, std::unique_ptr<torch::optim::OptimizerParamState>>> states;
};

template <typename Kind>
void read_state(const Place& root, const IValue& id, std::size_t index, const Tensor& parameter,
                const typename Kind::Options& options, bool keep, Loaded& loaded) {
  const auto states = root.at("state").toGenericDict();
  if (!states.contains(id) || !states.at(id).isGenericDict() || states.at(id).toGenericDict().empty()) {
    // Adagrad makes its states when it is made, the others at a parameter's first step.
    if constexpr (std::is_same_v<Kind, Adagrad>)
      root.fail("expected a state of parameter " + std::to_string(index) + ", got none");
    return;
  }
  const Place entry(root.source, root.where + ": parameter " + std::to_string(index), states.at(id));
  auto state = std::make_unique<typename Kind::State>();
  const StateReader reader{entry, parameter, keep};
  Kind::state(*state, options, reader);
  if (keep) loaded.states.emplace_back(parameter.unsafeGetTensorImpl(), std::move(state));
}

template <typename Kind>
Loaded read_all(Optimizer& optimizer, const Place& root) {
  const auto* zero = dynamic_cast<const ZeroOptimizer*>(&optimizer);
  const auto groups = root.list("param_groups");
  auto& ours = optimizer.param_groups();
  if (groups.size() != ours.size())
    root.fail("expected " + std::to_string(ours.size()) + " parameter groups, got " +
              std::to_string(groups.size()));
  if (!root.at("state").isGenericDict()) root.fail("state", "a dict", root.at("state"));
  Loaded loaded;
  std::size_t index = 0;
  for (std::size_t g = 0; g < ours.size(); ++g) {
    const Place group(root.source, root.where + ": parameter group " + std::to_string(g), groups.get(g));
    const auto kind = kind_of_group(group, Kind::kName);
    if (kind != Kind::kName) group.fail(std::string("expected ") + Kind::kName + ", got " + kind);
    const auto ids = group.list("params");
    if (ids.size() != ours[g].params().size())
      group.fail("expected " + std::to_string(ours[g].params().size()) + " parameters, got " +
                 std::to_string(ids.size()));
    auto options = ours[g].options().clone();
    auto& typed = static_cast<typename Kind::Options&>(*options);
    const OptionsReader reader{group};
    Kind::options(typed, reader);
    for (std::size_t i = 0; i < ids.size(); ++i, ++index)
      read_state<Kind>(root, ids.get(i), index, ours[g].params()[i], typed,
                       zero == nullptr || zero->owns(index), loaded);
    loaded.options.push_back(std::move(options));
  }
  return loaded;
}

const torch::optim::OptimizerOptions& options_of(Optimizer& optimizer) {
  if (optimizer.param_groups().empty())
    throw std::invalid_argument("an optimizer without parameters has no state dict");
  return optimizer.param_groups()[0].options();
}

}  // namespace

IValue optimizer_state_dict(Optimizer& optimizer) {
  return with_kind(options_of(optimizer), [&](auto kind) -> IValue {
    using Kind = decltype(kind);
    auto states = named_states<Kind>(optimizer);
    if (const auto* zero = dynamic_cast<const ZeroOptimizer*>(&optimizer)) {
      states = zero->gather_to_rank_0(states);
      if (zero->rank() != 0) return {};
    }
    auto root = make_dict(c10::StringType::get());
    root.insert("state", state_of(states));
    root.insert("param_groups", groups_of<Kind>(optimizer));
    return root;
  });
}

void load_optimizer_state(Optimizer& optimizer, const IValue& state_dict,
                          const std::filesystem::path& source) {
  torch::NoGradGuard no_grad;
  with_kind(options_of(optimizer), [&](auto kind) {
    auto loaded = read_all<decltype(kind)>(optimizer, Place(source, "optimizer", state_dict));
    for (std::size_t g = 0; g < loaded.options.size(); ++g)
      optimizer.param_groups()[g].set_options(std::move(loaded.options[g]));
    optimizer.state().clear();
    for (auto& [parameter, state] : loaded.states) optimizer.state()[parameter] = std::move(state);
  });
}

}  // namespace ddprun::train
