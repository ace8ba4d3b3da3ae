#include "worker/train/checkpoint.h"

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>

#include <nlohmann/json.hpp>

#include "common/errors.h"
#include "worker/serialize/pt_file.h"

namespace ddprun::train {
namespace {

c10::impl::GenericDict make_dict() {
  return c10::impl::GenericDict(c10::StringType::get(), c10::AnyType::get());
}

c10::IValue to_value(const nlohmann::json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_null()) return {};
  ensure(json.is_object(), "a configuration holds objects and scalars");
  auto dict = make_dict();
  for (const auto& [key, value] : json.items()) dict.insert(key, to_value(value));
  return dict;
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const TrainingState& state) {
  auto root = make_dict();
  root.insert("model", state.model);
  root.insert("optimizer", state.optimizer);
  root.insert("epoch", state.epoch);
  root.insert("step", state.step);
  root.insert("config", to_value(nlohmann::json::parse(state.config_json)));
  if (const auto folder = path.parent_path(); !folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) throw IoError(folder, "cannot create the folder", error.value());
  }
  serialize::write_pt(path, root);
}

}  // namespace ddprun::train
