#include "worker/config/resumed_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include <ddprun/common/errors.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/state/checkpoint.h>

namespace ddprun::worker {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// How long to train and on what, which is this run's own; and the weights before the first step.
constexpr std::array<std::string_view, 7> kOfEachRun = {"epochs",  "max-steps", "max-time",    "device",
                                                        "backend", "timeout",   "init-weights"};

std::string shown(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.is_null() ? "default" : value.dump();
}

/// Sets to a value of to_json(). A value that this version does not accept stays unset.
void assign(const settings::Setting& setting, const json& value) {
  setting.set(value.is_null() ? "" : shown(value));
}

/// Defaults may depend on other settings, and those that were changed for the checkpoint count as stated.
///
/// merged  as to_json()
void settle_merged(Config& config, const std::vector<settings::Setting>& settings, const json& merged,
                   const TaskEntry& task) {
  Config plain;
  plain.task = config.task;
  task.set_defaults(plain);
  const auto defaults = json::parse(to_json(plain));
  const auto stated = config.stated;
  task.set_defaults(config);
  for (const auto& setting : settings) {
    const auto value = merged.find(setting.key());
    if (value == merged.end() || value->is_null() || !setting.belongs_to(config.task)) continue;
    const bool is_default = *value == defaults[setting.key()];
    if (is_default && !setting.get() && !stated.contains(setting.name))
      continue;  // gives way to a stated one
    assign(setting, *value);
    if (!is_default) config.stated.insert(setting.name);
  }
  try {
    settle(config, task);
  } catch (const UsageError& error) {
    throw UsageError(std::string("--resume: with the checkpoint's settings: ") + error.what());
  }
  config.stated = stated;
}

}  // namespace

std::string config_of_checkpoint(const Config& config) {
  const fs::path resume = config.train.checkpoint.resume;
  if (resume == "auto") {
    const auto found = train::find_resume(config.train.out, [](const auto&, const auto&) {});
    return found.found() ? found.state.config_json : "";
  }
  std::error_code error;
  if (resume.empty() || !fs::exists(resume, error)) return "";
  return train::to_training_state(serialize::peek_pt(resume), resume).config_json;
}

ResumedConfig resumed_config(const Config& config, const std::string& checkpoint_json,
                             const TaskEntry& task) {
  ResumedConfig resumed{config, config, ""};
  const auto was = json::parse(checkpoint_json);
  const auto is = json::parse(to_json(config));
  if (was.value("task", config.task) != config.task) return resumed;  // refused once the task is known
  auto merged = is;
  auto settings = all_settings(resumed.config), before = all_settings(resumed.before);
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const auto& setting = settings[i];
    const auto key = setting.key();
    if (!setting.belongs_to(config.task) || !setting.kept || !setting.is_flag || !was.contains(key) ||
        was[key] == is[key] || std::ranges::find(kOfEachRun, setting.name) != kOfEachRun.end())
      continue;
    const bool stated = config.stated.contains(setting.name);
    if (setting.name == "optimizer" && stated)
      throw UsageError("--optimizer: expected " + shown(was[key]) + ", whose state the checkpoint has, got " +
                       shown(is[key]));
    assign(before[i], was[key]);
    if (!stated) {
      assign(setting, was[key]);
      merged[key] = was[key];
    } else {
      resumed.changes += (resumed.changes.empty() ? "--" : ", --") + setting.name + " " + shown(is[key]) +
                         " replaces the checkpoint's " + shown(was[key]);
    }
  }
  if (was.contains("weight_decay") && was["weight_decay"].is_null())
    resumed.before.train.optim.optimizer.weight_decay.reset();
  settle_merged(resumed.config, settings, merged, task);
  return resumed;
}

}  // namespace ddprun::worker
