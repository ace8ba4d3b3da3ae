#include <ddprun/train/state/state_dict_file.h>

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/serialize/safetensors.h>
#include <ddprun/train/state/shard_index.h>

namespace ddprun::train {
namespace {

constexpr std::string_view kWrapper = "module.";
constexpr std::string_view kAverages = "n_averaged";  // AveragedModel's count, next to module.NAME
constexpr std::size_t kNamesShown = 3;

/// Python's order: a module's own parameters, its own buffers, then its children.
void collect(const torch::nn::Module& module, const std::string& prefix, StateDict& tensors) {
  for (const auto& own : {module.named_parameters(false), module.named_buffers(false)})  // not its children's
    for (const auto& item : own)
      if (item.value().defined()) tensors.emplace_back(prefix + item.key(), item.value());
  for (const auto& item : module.named_children()) collect(*item.value(), prefix + item.key() + ".", tensors);
}

/// One kind of problem, with the first few tensors that have it; empty if none has.
std::string listed(const std::string& what, std::vector<std::string> tensors) {
  if (tensors.empty()) return "";
  const auto more = tensors.size() > kNamesShown ? tensors.size() - kNamesShown : 0;
  tensors.resize(tensors.size() - more);
  return what + " " + joined(tensors, ", ") + (more > 0 ? " and " + std::to_string(more) + " more" : "");
}

bool is_state_dict(const c10::impl::GenericDict& dict) {
  return !dict.empty() && std::all_of(dict.begin(), dict.end(), [](const auto& item) {
    return item.key().isString() && item.value().isTensor();
  });
}

StateDict tensors_of(const c10::impl::GenericDict& dict) {
  StateDict tensors;
  for (const auto& item : dict) tensors.emplace_back(item.key().toStringRef(), item.value().toTensor());
  return tensors;
}

/// The state_dict in a .pt file's value: itself or under one of the keys.
std::optional<StateDict> find_state_dict(const c10::IValue& root, std::initializer_list<const char*> keys) {
  if (!root.isGenericDict()) return std::nullopt;
  const auto dict = root.toGenericDict();
  if (is_state_dict(dict)) return tensors_of(dict);
  for (const char* key : keys)
    if (dict.contains(key))
      if (auto found = find_state_dict(dict.at(key), {})) return found;
  return std::nullopt;
}

/// The weights without the prefix; nullopt unless all names have it.
std::optional<StateDict> without_prefix(const StateDict& weights, std::string_view prefix) {
  StateDict shorter;
  for (const auto& [name, tensor] : weights) {
    if (!name.starts_with(prefix)) return std::nullopt;
    shorter.emplace_back(name.substr(prefix.size()), tensor);
  }
  return shorter;
}

/// Logged only by rank 0: every rank reads the file.
void say_dropped(std::string_view prefix, const std::filesystem::path& source) {
  if (process_env("RANK").value_or("0") == "0")
    log_info(source.string() + ": the prefix " + in_quotes(std::string(prefix)) + " of all names is dropped");
}

/// "a." and "a.b." for "a.b.c".
std::vector<std::string> prefixes_of(const std::string& name) {
  std::vector<std::string> prefixes;
  for (auto dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
    prefixes.push_back(name.substr(0, dot + 1));
  return prefixes;
}

/// From AveragedModel's state_dict.
StateDict without_counts(StateDict weights) {
  std::erase_if(weights, [](const auto& item) { return item.first == kAverages; });
  return without_prefix(weights, kWrapper).value_or(weights);
}

StateDict plain_weights(std::optional<StateDict> weights, const std::filesystem::path& path) {
  if (!weights)
    throw IoError(
        path, R"(holds no weights, expected a state_dict, or a dict with one under "model" or "state_dict")");
  if (weights->empty()) throw IoError(path, "holds no tensors, expected a model's weights");
  auto shorter = without_prefix(*weights, kWrapper);
  if (shorter) say_dropped(kWrapper, path);
  return *std::move(shorter ? shorter : weights);
}

/// Why the weights cannot be copied into the targets; empty if they can.
std::string problem(const StateDict& targets, std::map<std::string, torch::Tensor> weights) {
  std::vector<std::string> missing, misshapen, unexpected, problems;
  const auto described = [](const std::string& name, const torch::Tensor& tensor) {
    return in_quotes(name) + " " + c10::str(tensor.sizes());
  };
  for (const auto& [name, target] : targets) {
    const auto found = weights.extract(name);
    if (found.empty())
      missing.push_back(described(name, target));
    else if (found.mapped().sizes() != target.sizes())
      misshapen.push_back(described(name, found.mapped()) + ", expected " + c10::str(target.sizes()));
  }
  for (const auto& [name, tensor] : weights) unexpected.push_back(described(name, tensor));
  for (const auto& kind : {listed("missing", missing), listed("with a different shape", misshapen),
                           listed("unexpected", unexpected)})
    if (!kind.empty()) problems.push_back(kind);
  return joined(problems, "; ");
}

}  // namespace

OpenWeights open_weights(const std::filesystem::path& path, WeightsOf which) {
  const bool is_pt = !serialize::is_safetensors(path);
  if (!is_pt && which != WeightsOf::kAverages)
    return {plain_weights(serialize::read_safetensors(path).tensors, path), {}};
  auto root = is_pt ? serialize::read_pt(path) : c10::IValue();
  if (is_our_lightning(root)) root = from_lightning(root);
  const auto under = [&](const char* key) {
    return root.isGenericDict() && root.toGenericDict().contains(key) ? root.toGenericDict().at(key)
                                                                      : c10::IValue();
  };
  const bool averaged =
      which == WeightsOf::kAverages || (which == WeightsOf::kAveragesIfAny && !under("ema").isNone());
  const char* key = averaged ? "ema" : "model";
  if (!under("shards").isString() || !under(key).isGenericDict())
    return {averaged ? to_averaged_weights(under(key), path)
                     : plain_weights(find_state_dict(root, {"model", "state_dict"}), path),
            {},
            is_lightning(root)};
  const auto reader = std::make_shared<ShardReader>(path, under("shards").toStringRef());
  auto weights = reader->hollow(key, under(key));
  if (averaged) weights = without_counts(std::move(weights));
  return {std::move(weights), [reader](const at::Tensor& tensor) { return reader->value_of(tensor); }};
}

StateDict with_memory(StateDict tensors, const serialize::ValueOf& value_of) {
  std::unordered_map<const void*, at::Tensor> values;  // tied ones stay tied
  if (value_of)
    for (auto& [name, tensor] : tensors) {
      auto& value = values[tensor.storage().unsafeGetStorageImpl()];
      if (!value.defined()) value = value_of(tensor).clone();
      tensor = value;
    }
  return tensors;
}

StateDict read_weights(const std::filesystem::path& path, WeightsOf which) {
  auto weights = open_weights(path, which);
  return with_memory(std::move(weights.tensors), weights.value_of);
}

StateDict to_averaged_weights(const c10::IValue& ema, const std::filesystem::path& source) {
  if (ema.isNone())
    throw IoError(source, "holds no averaged weights, expected a checkpoint of a run with --ema");
  return without_counts(to_weights(ema, source));
}

StateDict to_weights(const c10::IValue& state_dict, const std::filesystem::path& source) {
  auto weights = find_state_dict(state_dict, {});
  if (!weights) throw IoError(source, "its weights are not a state_dict, expected tensors by name");
  return *std::move(weights);
}

void load_weights(torch::nn::Module& module, const StateDict& weights, const std::filesystem::path& source) {
  using ByName = std::map<std::string, torch::Tensor>;
  StateDict targets;
  collect(module, "", targets);
  ByName by_name(weights.begin(), weights.end());
  if (const auto reason = problem(targets, by_name); !reason.empty()) {
    const auto fits = [&](const std::string& prefix) {
      const auto shorter = without_prefix(weights, prefix);
      if (shorter) by_name = ByName(shorter->begin(), shorter->end());
      return shorter && problem(targets, by_name).empty();
    };
    const auto prefixes = weights.empty() ? std::vector<std::string>() : prefixes_of(weights.front().first);
    const auto found = std::find_if(prefixes.begin(), prefixes.end(), fits);
    if (found == prefixes.end()) throw IoError(source, "its tensors do not fit the model: " + reason);
    say_dropped(*found, source);
  }
  const c10::NoGradGuard no_grad;
  for (auto& [name, target] : targets) target.copy_(by_name.at(name));
}

c10::impl::GenericDict state_dict(const torch::nn::Module& module) {
  StateDict tensors;
  collect(module, "", tensors);
  auto dict = make_state();
  for (const auto& [name, tensor] : tensors) dict.insert(name, tensor.detach());
  return dict;
}

c10::impl::GenericDict copied(const c10::impl::GenericDict& tensors) {
  auto copies = make_state();
  for (const auto& item : tensors) copies.insert(item.key(), item.value().toTensor().clone());
  return copies;
}

}  // namespace ddprun::train
