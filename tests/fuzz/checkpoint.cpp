// A training state with values replaced: the input has lines PATH=JSON, such as config.accumulate=0 or
// callbacks.EarlyStopping.best_score="x"; !PATH removes a value. What reads a state either takes it or says
// in one line what is wrong.
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/train/loop/early_stopping.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/checkpoint_policy.h>
#include <ddprun/train/state/shard_index.h>
#include "tests/fuzz/fuzz.h"

namespace ddprun::fuzz {
namespace {

using c10::IValue;
using nlohmann::json;
using namespace train;

const std::string kFile = "run/checkpoints/last.pt";

CheckpointPolicy new_policy() {
  return CheckpointPolicy({.folder = "run/checkpoints",
                           .filename = "{epoch}-{loss:.2f}",
                           .monitor = "loss",
                           .save_top_k = 2,
                           .resumed_from = {}},
                          [](const auto& path) { return path.string().size() % 2 == 0; });
}

IValue base() {
  const auto one = at::zeros({2});
  auto policy = new_policy();
  policy.plan({{"loss", 0.5}}, 1, 7, CheckpointPolicy::Occasion::kValidation);
  EarlyStopping stopping({.monitor = "loss"});
  stopping.check(0.5, 1);
  TrainingState state;
  state.model = make_state({{"weight", one}});
  state.optimizer =
      make_state({{"state", make_state()},
                  {"param_groups", make_list({make_state({{"lr", 0.1}, {"params", make_list()}})})}});
  state.ema = make_state({{"n_averaged", at::zeros({})}, {"module.weight", one}});
  state.generators = {{at::zeros({8}, at::kByte), {}}};
  state.callbacks = {{"ModelCheckpoint", policy.state_dict()},
                     {"EarlyStopping", stopping.state_dict()},
                     {"Trainer", make_state({{"train_examples", 10}})}};
  state.config_json = R"({"task": "toy", "batch_size": 4, "accumulate": 1})";
  state.shards =
      R"({"folder": "last.shards", "bytes": 16, "checksums": [[1], [2]], "names": [["weight", "weight"]],
    "units": [{"shard_numel": 2, "parameters": [["weight", 0, [2, 2], [2, 1]]]}],
    "pieces": [["model", 0, "torch.float32", 0], ["exp_avg", 0, "torch.bool", 8]]})";
  return to_value(state);
}

IValue value_of(const json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_object()) {
    auto dict = make_state();
    for (const auto& [key, each] : json.items()) dict.insert(key, value_of(each));
    return dict;
  }
  auto list = make_list();
  if (json.is_array())
    for (const auto& each : json) list.push_back(value_of(each));
  return json.is_null() ? IValue() : IValue(list);
}

/// Does nothing if there is no such place. "shards" is a text of JSON: below it are the places within.
void edit(const IValue& root, const std::string& line) {
  const bool removes = line.starts_with('!');
  const auto parts = split(line, '=', 2);
  const auto path = split(removes ? line.substr(1) : parts[0], '.');
  const auto other = removes || parts.size() < 2 ? json() : json::parse(parts[1], nullptr, /*throws=*/false);
  if (other.is_discarded()) return;
  auto dict = root.toGenericDict();
  if (path[0] == "shards" && path.size() > 1 && dict.contains("shards") && dict.at("shards").isString()) {
    auto index = json::parse(dict.at("shards").toStringRef(), nullptr, false);
    const auto place = json::json_pointer([&] {
      std::string text;
      for (std::size_t i = 1; i < path.size(); ++i) text += "/" + path[i];
      return text.find('~') == std::string::npos ? text : "/none";
    }());
    if (!index.is_discarded() && index.contains(place)) index[place] = other;
    dict.insert_or_assign("shards", index.dump(-1, ' ', false, json::error_handler_t::replace));
    return;
  }
  for (std::size_t i = 0; i + 1 < path.size(); ++i) {
    if (!dict.contains(path[i]) || !dict.at(path[i]).isGenericDict()) return;
    dict = IValue(dict.at(path[i])).toGenericDict();
  }
  if (removes)
    (void)dict.erase(path.back());
  else
    dict.insert_or_assign(path.back(), value_of(other));
}

/// Calls what reads a callback's state, if there is any.
template <typename Callback>
void load(const TrainingState& state, const char* name, Callback& callback) try {
  if (const auto kept = state.callbacks.find(name);
      kept != state.callbacks.end() && kept->second.isGenericDict())
    callback.load_state_dict(kept->second.toGenericDict());
} catch (const std::invalid_argument& error) {
  expect_message(error.what());
}

void use(const TrainingState& state) {
  auto policy = new_policy();
  load(state, "ModelCheckpoint", policy);
  policy.forget_unless([](const auto&) { return false; });
  policy.plan({{"loss", 0.25}}, 2, 9, CheckpointPolicy::Occasion::kValidation);
  EarlyStopping stopping({.monitor = "loss"});
  load(state, "EarlyStopping", stopping);
  stopping.check(0.75, 2);
  auto whole = state;
  whole.shards.clear();
  to_training_state(to_file_value(whole, "exported.ckpt"), kFile);
  if (state.shards.empty()) return;
  ShardReader reader(kFile, state.shards);
  for (const char* key : {"model", "ema"}) try {
      reader.hollow(key, key == std::string("ema") ? state.ema : state.model);
    } catch (const std::invalid_argument& error) {
      expect_message(error.what());
    }
}

const std::vector<std::string>& places() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> found;
    const std::function<void(const IValue&, const std::string&)> walk = [&](const auto& value,
                                                                            const auto& at) {
      for (const auto& item : value.toGenericDict()) {
        found.push_back(at + item.key().toStringRef());
        if (item.value().isGenericDict()) walk(item.value(), found.back() + ".");
      }
    };
    walk(base(), "");
    const auto index = json::parse(base().toGenericDict().at("shards").toStringRef()).flatten();
    for (const auto& [key, value] : index.items()) {
      found.push_back("shards" + key);
      std::ranges::replace(found.back(), '/', '.');
    }
    return found;
  }();
  return all;
}

}  // namespace
}  // namespace ddprun::fuzz

/// Adds, replaces or removes a line.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned seed) {
  using namespace ddprun::fuzz;
  static const std::vector<std::string> values = {"0",
                                                  "1",
                                                  "-1",
                                                  "2",
                                                  "7",
                                                  "4611686018427387904",
                                                  "9223372036854775807",
                                                  "-9223372036854775808",
                                                  "1e300",
                                                  "0.5",
                                                  "true",
                                                  "false",
                                                  "null",
                                                  "\"\"",
                                                  "\"x\"",
                                                  "\"/\"",
                                                  "\"..\"",
                                                  "[]",
                                                  "[0]",
                                                  "[[]]",
                                                  "{}",
                                                  "{\"x\": 1}",
                                                  "\"torch.bool\"",
                                                  "\"torch.float64\"",
                                                  "[2, 2]",
                                                  "[9223372036854775807, 2]",
                                                  "[-1, 1]",
                                                  "[1]"};
  std::minstd_rand random(seed);
  const auto one_of = [&](const auto& all) { return all[random() % all.size()]; };
  auto lines = split(text_of(data, size), '\n');
  const auto line = random() % 8 == 0 ? "!" + one_of(places()) : one_of(places()) + "=" + one_of(values);
  const auto at = random() % lines.size();
  if (random() % 3 == 0)
    lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(at));
  else if (random() % 2 == 0)
    lines[at] = line;
  else
    lines.push_back(line);
  std::string text;
  for (const auto& each : lines) text += (text.empty() ? "" : "\n") + each;
  text.resize(std::min(text.size(), most));
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun;
  const auto value = fuzz::base();
  for (const auto& line : fuzz::split(fuzz::text_of(data, size), '\n', 40)) fuzz::edit(value, line);
  try {
    fuzz::use(train::to_training_state(value, fuzz::kFile));
  } catch (const IoError& error) {
    fuzz::expect_message(error.what());
    fuzz::expect(std::string_view(error.what()).starts_with(fuzz::kFile + ": "), "it names the file",
                 error.what());
  }
  return 0;
}
