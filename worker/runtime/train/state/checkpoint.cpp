#include <ddprun/train/state/checkpoint.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include <ddprun/common/errors.h>
#include <ddprun/common/text/in_quotes.h>
#include <ddprun/serialize/pt_file.h>

namespace ddprun::train {
namespace {

using c10::IValue;
using c10::impl::GenericDict;
using c10::impl::GenericList;

constexpr std::int64_t kFormat = 1;

GenericDict make_dict() { return GenericDict(c10::StringType::get(), c10::AnyType::get()); }

// -- the configuration: JSON in memory, a dict in the file --

IValue to_value(const nlohmann::json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())
    return json.dump();  // Python has such integers, an IValue has not
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_null()) return {};
  if (json.is_array()) {
    GenericList list(c10::AnyType::get());
    for (const auto& element : json) list.push_back(to_value(element));
    return list;
  }
  auto dict = make_dict();
  for (const auto& [key, value] : json.items()) dict.insert(key, to_value(value));
  return dict;
}

/// A file's dict and the file; names both when something is not as expected.
class Fields {
 public:
  Fields(GenericDict dict, const std::filesystem::path& source) : dict_(std::move(dict)), source_(source) {}

  [[noreturn]] void fail(const std::string& message) const {
    throw IoError(source_, "is no training state to go on from: " + message);
  }
  [[noreturn]] void fail(const char* key, const char* expected, const IValue& got) const {
    fail(serialize::in_quotes(key) + " is a " + got.tagKind() + ", expected " + expected);
  }
  /// None if it is absent.
  IValue optional(const char* key) const {
    for (const auto& item : dict_)
      if (item.key().isString() && item.key().toStringRef() == key) return item.value();
    return {};
  }
  IValue at(const char* key) const {
    auto value = optional(key);
    if (value.isNone()) fail("it lacks " + serialize::in_quotes(key));
    return value;
  }
  std::int64_t count(const char* key) const {
    const auto value = at(key);
    if (!value.isInt() || value.toInt() < 0) fail(key, "an integer >= 0", value);
    return value.toInt();
  }
  Fields fields(const char* key) const { return {dict(key).toGenericDict(), source_}; }
  IValue dict(const char* key) const {
    auto value = at(key);
    if (!value.isGenericDict()) fail(key, "a dict", value);
    return value;
  }
  IValue optional_dict(const char* key) const { return optional(key).isNone() ? IValue() : dict(key); }
  GenericList list(const char* key) const {
    const auto value = at(key);
    if (!value.isList()) fail(key, "a list", value);
    return value.toList();
  }
  nlohmann::json json(const IValue& value) const;

 private:
  GenericDict dict_;
  const std::filesystem::path& source_;
};

nlohmann::json Fields::json(const IValue& value) const {
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isString()) return value.toStringRef();
  if (value.isNone()) return nullptr;
  if (value.isList()) {
    auto array = nlohmann::json::array();
    for (const IValue& element : value.toListRef()) array.push_back(json(element));
    return array;
  }
  if (!value.isGenericDict()) fail("config", "numbers, text, lists and dicts", value);
  auto object = nlohmann::json::object();
  for (const auto& item : value.toGenericDict()) {
    if (!item.key().isString()) fail("config", "keys of text", item.key());
    object[item.key().toStringRef()] = json(item.value());
  }
  return object;
}

// -- the generators --

IValue to_value(const std::vector<GeneratorState>& generators) {
  GenericList list(c10::AnyType::get());
  for (const auto& of_rank : generators) {
    auto dict = make_dict();
    if (of_rank.cpu.defined()) dict.insert("cpu", of_rank.cpu);
    if (of_rank.cuda.defined()) dict.insert("cuda", of_rank.cuda);
    list.push_back(dict);
  }
  return list;
}

std::vector<GeneratorState> read_generators(const Fields& root) {
  std::vector<GeneratorState> generators;
  for (const IValue& of_rank : root.list("generators")) {
    if (!of_rank.isGenericDict()) root.fail("generators", "a list of dicts", of_rank);
    GeneratorState state;
    for (const auto& item : of_rank.toGenericDict()) {
      if (!item.value().isTensor() || item.value().toTensor().scalar_type() != at::kByte ||
          item.value().toTensor().dim() != 1)
        root.fail("generators", "bytes for each device", item.value());
      if (item.key() == IValue("cpu")) state.cpu = item.value().toTensor();
      if (item.key() == IValue("cuda")) state.cuda = item.value().toTensor();
    }
    generators.push_back(state);
  }
  return generators;
}

}  // namespace

IValue to_value(const TrainingState& state) {
  auto root = make_dict();
  root.insert("format", kFormat);
  root.insert("model", state.model);
  root.insert("optimizer", state.optimizer);
  for (const auto& [key, part] :
       {std::pair{"lr_schedule", &state.lr_schedule}, {"scaler", &state.scaler}, {"ema", &state.ema}})
    if (!part->isNone()) root.insert(key, *part);
  if (!state.model_config.empty()) root.insert("model_config", state.model_config);
  root.insert("epoch", state.epoch);
  root.insert("step", state.step);
  auto position = make_dict();
  position.insert("epoch", state.position.epoch);
  position.insert("samples", state.position.samples);
  root.insert("position", position);
  root.insert("world_size", state.world_size);
  root.insert("generators", to_value(state.generators));
  auto callbacks = make_dict();
  for (const auto& [name, callback] : state.callbacks) callbacks.insert(name, callback);
  root.insert("callbacks", callbacks);
  root.insert("config", to_value(nlohmann::json::parse(state.config_json)));
  return root;
}

TrainingState to_training_state(const IValue& value, const std::filesystem::path& source) {
  if (!value.isGenericDict())
    throw IoError(source, "is no training state to go on from: it holds a " + value.tagKind());
  const Fields root(value.toGenericDict(), source);
  if (root.optional("format").isNone())
    root.fail(
        "it lacks \"format\", expected what a run leaves in checkpoints/ (for weights alone: "
        "--init-weights)");
  if (const auto format = root.count("format"); format != kFormat)
    root.fail("it has format " + std::to_string(format) + ", expected " + std::to_string(kFormat));
  TrainingState state;
  state.model = root.dict("model");
  state.optimizer = root.dict("optimizer");
  state.lr_schedule = root.optional_dict("lr_schedule");
  state.scaler = root.optional_dict("scaler");
  state.ema = root.optional_dict("ema");
  if (const auto shape = root.optional("model_config"); !shape.isNone()) {
    if (!shape.isString()) root.fail("model_config", "text", shape);
    state.model_config = shape.toStringRef();
  }
  state.epoch = root.count("epoch");
  state.step = root.count("step");
  const auto position = root.fields("position");
  state.position = {position.count("epoch"), position.count("samples")};
  state.world_size = root.count("world_size");
  state.generators = read_generators(root);
  for (const auto& item : root.dict("callbacks").toGenericDict())
    if (item.key().isString()) state.callbacks.emplace(item.key().toStringRef(), item.value());
  state.config_json = root.json(root.dict("config")).dump();
  return state;
}

void save_checkpoint(const std::filesystem::path& path, const TrainingState& state) {
  if (const auto folder = path.parent_path(); !folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) throw IoError(folder, "cannot create the folder", error.value());
  }
  serialize::write_pt(path, to_value(state));
}

TrainingState read_checkpoint(const std::filesystem::path& path) {
  return to_training_state(serialize::read_pt(path), path);
}

TrainingState read_weights_of_checkpoint(const std::filesystem::path& path) {
  return to_training_state(serialize::read_pt(path, {"model", "ema"}), path);
}

}  // namespace ddprun::train
