#include <ddprun/train/state/optimizer_state.h>

#include <ATen/core/jit_type.h>
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/rmsprop.h>
#include <torch/types.h>

#include <string_view>
#include <tuple>
#include <type_traits>

#include <ddprun/common/errors.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/sharding/zero_optimizer.h>
#include <ddprun/train/optim/optimizer.h>

namespace ddprun::train {
namespace {

using c10::IValue;
using c10::impl::GenericDict;
using ddp::ZeroOptimizer;
using torch::Tensor;
using torch::optim::Optimizer;
using Betas = std::tuple<double, double>;
using FixedOptions = std::initializer_list<std::pair<const char*, IValue>>;
using NamedTensors = ZeroOptimizer::NamedTensors;

// Each kind of optimizer: its options and state under the names and in the order of Python's class (torch
// 2.11). One description serves writing and reading:
//
//   visit(key, reference)              an option or number
//   visit.fixed({{key, value}, ...})   options that exist only in Python
//   visit(key, tensor, required)       a tensor of the state; may be undefined unless required

template <typename AdamOptions, typename AdamState, bool kDecoupled>
struct AdamKind {
  using Options = AdamOptions;
  using State = AdamState;
  static constexpr const char* kName = kDecoupled ? "AdamW" : "Adam";

  static void options(Options& options, auto& visit) {
    visit("lr", options.lr());
    visit("betas", options.betas());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("amsgrad", options.amsgrad());
    visit.fixed({{"maximize", false},
                 {"foreach", {}},
                 {"capturable", false},
                 {"differentiable", false},
                 {"fused", {}},
                 {"decoupled_weight_decay", kDecoupled}});
  }
  static void state(State& state, const Options& options, auto& visit) {
    visit("step", state.step());
    visit("exp_avg", state.exp_avg(), true);
    visit("exp_avg_sq", state.exp_avg_sq(), true);
    visit("max_exp_avg_sq", state.max_exp_avg_sq(), options.amsgrad());
  }
};
using Adam = AdamKind<torch::optim::AdamOptions, torch::optim::AdamParamState, false>;
using AdamW = AdamKind<torch::optim::AdamWOptions, torch::optim::AdamWParamState, true>;

struct Sgd {
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr const char* kName = "SGD";

  static void options(Options& options, auto& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("dampening", options.dampening());
    visit("weight_decay", options.weight_decay());
    visit("nesterov", options.nesterov());
    visit.fixed({{"maximize", false}, {"foreach", {}}, {"differentiable", false}, {"fused", {}}});
  }
  static void state(State& state, const Options&, auto& visit) {
    visit("momentum_buffer", state.momentum_buffer(), true);
  }
};

struct AdadeltaKind {
  using Options = AdadeltaOptions;
  using State = AdadeltaParamState;
  static constexpr const char* kName = "Adadelta";

  static void options(Options& options, auto& visit) {
    visit("lr", options.lr());
    visit("rho", options.rho());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit.fixed({{"maximize", false}, {"capturable", false}, {"foreach", {}}, {"differentiable", false}});
  }
  static void state(State& state, const Options&, auto& visit) {
    visit("step", state.step());
    visit("square_avg", state.square_avg(), true);
    visit("acc_delta", state.acc_delta(), true);
  }
};

struct Adagrad {
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  static constexpr const char* kName = "Adagrad";

  static void options(Options& options, auto& visit) {
    visit("lr", options.lr());
    visit("lr_decay", options.lr_decay());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("initial_accumulator_value", options.initial_accumulator_value());
    visit.fixed({{"foreach", {}}, {"maximize", false}, {"differentiable", false}, {"fused", {}}});
  }
  static void state(State& state, const Options&, auto& visit) {
    visit("step", state.step());
    visit("sum", state.sum(), true);
  }
};

struct RmsProp {
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static constexpr const char* kName = "RMSprop";

  static void options(Options& options, auto& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("alpha", options.alpha());
    visit("eps", options.eps());
    visit("centered", options.centered());
    visit("weight_decay", options.weight_decay());
    visit.fixed({{"capturable", false}, {"foreach", {}}, {"maximize", false}, {"differentiable", false}});
  }
  static void state(State& state, const Options& options, auto& visit) {
    visit("step", state.step());
    visit("square_avg", state.square_avg(), true);
    visit("momentum_buffer", state.momentum_buffer(), options.momentum() > 0);
    visit("grad_avg", state.grad_avg(), options.centered());
  }
};

/// Calls use(kind) with the kind whose options these are; throws std::invalid_argument for another optimizer.
template <typename Use>
auto with_kind(const torch::optim::OptimizerOptions& options, Use use) {
  if (dynamic_cast<const Sgd::Options*>(&options) != nullptr) return use(Sgd{});
  if (dynamic_cast<const Adam::Options*>(&options) != nullptr) return use(Adam{});
  if (dynamic_cast<const AdamW::Options*>(&options) != nullptr) return use(AdamW{});
  if (dynamic_cast<const AdadeltaKind::Options*>(&options) != nullptr) return use(AdadeltaKind{});
  if (dynamic_cast<const Adagrad::Options*>(&options) != nullptr) return use(Adagrad{});
  if (dynamic_cast<const RmsProp::Options*>(&options) != nullptr) return use(RmsProp{});
  throw std::invalid_argument(
      "the state of this optimizer has no state dict, expected SGD, Adam, AdamW, Adadelta, Adagrad or "
      "RMSprop");
}

struct OptionsWriter {
  GenericDict group = make_state();

  void operator()(const char* key, const auto& value) { group.insert(key, IValue(value)); }
  void fixed(FixedOptions options) {
    for (const auto& [key, value] : options) group.insert(key, value);
  }
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

/// For every parameter of all groups, this process's part of its state.
template <typename Kind>
std::vector<NamedTensors> named_states(Optimizer& optimizer) {
  std::vector<NamedTensors> result;
  for (auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) {
      StateWriter writer;
      if (const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
          found != optimizer.state().end())
        Kind::state(static_cast<typename Kind::State&>(*found->second),
                    static_cast<typename Kind::Options&>(group.options()), writer);
      result.push_back(std::move(writer.tensors));
    }
  return result;
}

GenericDict state_of(const std::vector<NamedTensors>& all) {
  GenericDict state(c10::IntType::get(), c10::AnyType::get());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].empty()) continue;
    auto entry = make_state();
    for (const auto& [name, tensor] : all[i]) entry.insert(name, tensor);
    state.insert(static_cast<std::int64_t>(i), entry);
  }
  return state;
}

template <typename Kind>
c10::impl::GenericList groups_of(Optimizer& optimizer) {
  auto groups = make_list();
  std::int64_t next_index = 0;
  for (auto& group : optimizer.param_groups()) {
    OptionsWriter writer;
    Kind::options(static_cast<typename Kind::Options&>(group.options()), writer);
    auto indices = make_list();
    for (std::size_t i = 0; i < group.params().size(); ++i) indices.push_back(next_index++);
    writer.group.insert("params", indices);
    groups.push_back(writer.group);
  }
  return groups;
}

struct OptionsReader {
  const DictReader& group;

  void operator()(const char* key, double& value) const { value = group.number(key); }
  void operator()(const char* key, bool& value) const { value = group.boolean(key); }
  void operator()(const char* key, Betas& value) const {
    const auto both = group.numbers(key);
    if (both.size() != 2) group.fail(std::string("'") + key + "': expected two numbers");
    value = {both[0], both[1]};
  }
  void fixed(FixedOptions) const {
    if (group.has("maximize") && group.boolean("maximize"))
      group.fail("'maximize': expected False, got True");
  }
};

struct StateReader {
  const DictReader& entry;
  const Tensor& parameter;
  bool keep;  ///< false: only check, since the state belongs to another rank

  void operator()(const char* key, std::int64_t& step) const {
    step = static_cast<std::int64_t>(entry.number(key));
  }
  void operator()(const char* key, Tensor& tensor, bool required) const {
    if (!required && !entry.has(key)) return;
    const auto value = entry.tensor(key);
    if (value.sizes() != parameter.sizes())
      entry.fail(c10::str("'", key, "': expected shape ", parameter.sizes(), ", got ", value.sizes()));
    if (keep) tensor = torch::empty_like(parameter.detach()).copy_(value);
  }
};

/// The kind of optimizer that wrote the group, recognised by an option unique to it; ours if it may be either
/// of two.
std::string kind_of_group(const DictReader& group, const char* ours) {
  if (group.has("nesterov")) return Sgd::kName;
  if (group.has("alpha")) return RmsProp::kName;
  if (group.has("lr_decay")) return Adagrad::kName;
  if (group.has("rho")) return AdadeltaKind::kName;
  if (!group.has("amsgrad")) return "another optimizer";
  if (group.has("decoupled_weight_decay"))
    return group.boolean("decoupled_weight_decay") ? AdamW::kName : Adam::kName;
  return ours == std::string_view(AdamW::kName) ? AdamW::kName : Adam::kName;  // before torch 2.8
}

/// What a state dict gives to an optimizer, complete before anything changes.
struct Loaded {
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
  std::vector<std::pair<void*, std::unique_ptr<torch::optim::OptimizerParamState>>> states;
};

template <typename Kind>
void read_state(const GenericDict& states, const IValue& id, std::size_t index, const Tensor& parameter,
                const typename Kind::Options& options, bool keep, Loaded& loaded) {
  const auto owner = "optimizer: parameter " + std::to_string(index);
  if (!id.isInt())
    throw std::invalid_argument(owner + ": expected an integer in 'params', got " + id.tagKind());
  if (!states.contains(id) || !states.at(id).isGenericDict() || states.at(id).toGenericDict().empty()) {
    // Adagrad's states exist from the start, the others' from a parameter's first step.
    if constexpr (std::is_same_v<Kind, Adagrad>)
      throw std::invalid_argument(owner + ": expected a state, got none");
    return;
  }
  const DictReader entry(states.at(id).toGenericDict(), owner);
  auto state = std::make_unique<typename Kind::State>();
  const StateReader reader{entry, parameter, keep};
  Kind::state(*state, options, reader);
  if (keep) loaded.states.emplace_back(parameter.unsafeGetTensorImpl(), std::move(state));
}

template <typename Kind>
Loaded read_all(Optimizer& optimizer, const IValue& state_dict) {
  const auto* zero = dynamic_cast<const ZeroOptimizer*>(&optimizer);
  const DictReader root(state_dict, "optimizer");
  const auto groups = root.list("param_groups");
  auto& ours = optimizer.param_groups();
  if (groups.size() != ours.size())
    root.fail("expected " + std::to_string(ours.size()) + " parameter groups, got " +
              std::to_string(groups.size()));
  const auto states = root.dict("state");
  const bool own = root.has("own");
  Loaded loaded;
  std::size_t index = 0;
  for (std::size_t g = 0; g < ours.size(); ++g) {
    const DictReader group(groups[g], "optimizer: parameter group " + std::to_string(g));
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
      if (!own || zero == nullptr || zero->owns(index))
        read_state<Kind>(states, ids[i], index, ours[g].params()[i], typed,
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

IValue optimizer_state_dict(Optimizer& optimizer, bool own) {
  return with_kind(options_of(optimizer), [&](auto kind) -> IValue {
    using Kind = decltype(kind);
    auto states = named_states<Kind>(optimizer);
    if (const auto* zero = dynamic_cast<const ZeroOptimizer*>(&optimizer); zero != nullptr && !own) {
      states = zero->gather_to_rank_0(states);
      if (zero->rank() != 0) return {};
    }
    auto root = make_state({{"state", state_of(states)}, {"param_groups", groups_of<Kind>(optimizer)}});
    if (own) root.insert("own", true);
    return root;
  });
}

std::vector<Tensor> replicated_tensors(const torch::nn::Module& module, Optimizer& optimizer) {
  auto tensors = module.parameters();
  if (dynamic_cast<ZeroOptimizer*>(&optimizer) != nullptr) return tensors;
  try {
    optimizer_state_dict(optimizer).visit([&](const IValue& part) {
      if (part.isTensor()) tensors.push_back(part.toTensor());
      return false;
    });
  } catch (const std::invalid_argument&) {
  }
  return tensors;
}

void load_optimizer_state(Optimizer& optimizer, const IValue& state_dict,
                          const std::filesystem::path& source) {
  torch::NoGradGuard no_grad;
  with_kind(options_of(optimizer), [&](auto kind) {
    Loaded loaded;
    try {
      loaded = read_all<decltype(kind)>(optimizer, state_dict);
    } catch (const std::invalid_argument& error) {
      throw IoError(source, error.what());
    }
    for (std::size_t g = 0; g < loaded.options.size(); ++g)
      optimizer.param_groups()[g].set_options(std::move(loaded.options[g]));
    optimizer.state().clear();
    for (auto& [parameter, state] : loaded.states) optimizer.state()[parameter] = std::move(state);
  });
}

}  // namespace ddprun::train
