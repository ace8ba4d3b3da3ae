#include "worker/config/config.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include <ddprun/common/errors.h>
#include "worker/config/command_line.h"
#include "worker/config/sections.h"
#include "worker/config/toml.h"
#include "worker/tasks/registry.h"

namespace ddprun::worker {
namespace {

std::vector<TaskHelp> task_helps() {
  std::vector<TaskHelp> helps;
  for (const auto& task : all_tasks())
    helps.push_back({task.name, task.description, task.footer, task.positionals});
  return helps;
}

/// Sets what the words and their file say; the words win.
void set_all(const CommandLine& line, const std::vector<Setting>& settings) {
  if (!line.config_file.empty()) {
    if (const auto task = task_of_toml(line.config_file); !task.empty() && task != line.task)
      throw UsageError(line.config_file.string() + ": is for the task " + task + ", not for " + line.task);
    apply_toml(line.config_file, line.task, settings);
  }
  for (const auto& [setting, text] : line.given)
    if (const auto expected = setting->set(text); !expected.empty())
      throw UsageError(setting->flag() + ": expected " + expected + ", got '" + text + "'");
}

}  // namespace

Config parse_config(int argc, const char* const* argv) {
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  Config config;
  config.task = task_of_words(words);
  set_defaults(config);
  std::set<std::string> given;
  auto settings = all_settings(config);
  for (auto& setting : settings)
    setting.set = [&given, name = setting.name, set = setting.set](const std::string& text) {
      given.insert(name);
      return set(text);
    };
  const auto line = parse_command_line(words, task_helps(), settings);
  set_all(line, settings);
  set_defaults(config);  // again: some depend on what was given, which wins
  set_all(line, settings);
  config.overwrite = line.overwrite;
  settle_defaults(config, given);
  check_combinations(config);
  if (line.print_config) {
    std::cout << to_toml(config.task, settings, /*whole=*/true);
    std::exit(EXIT_SUCCESS);
  }
  config.train.config_json = to_json(config);
  return config;
}

std::string to_json(const Config& config) {
  Config copy = config;  // settings are bound to what they may set
  nlohmann::ordered_json json = {{"task", config.task}};
  for (const auto& setting : all_settings(copy)) {
    if (!setting.belongs_to(config.task) || !setting.in_run_folder) continue;
    const auto value = setting.get();
    json[setting.key()] =
        value ? std::visit([](const auto& one) { return nlohmann::ordered_json(one); }, *value) : nullptr;
  }
  // A path is bytes, JSON is UTF-8.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string to_toml(const Config& config) {
  Config copy = config;
  return to_toml(config.task, all_settings(copy), /*whole=*/false);
}

ddp::ProcessGroup::Options group_options(const Config& config) {
  ddp::ProcessGroup::Options options;
  options.timeout = config.timeout;
  options.connect_timeout = std::min<std::chrono::milliseconds>(config.timeout, std::chrono::minutes(5));
  options.device = config.device;
  options.backend = config.backend;
  return options;
}

}  // namespace ddprun::worker
