#include "worker/config/config.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/settings/toml.h>
#include <ddprun/common/text/printable.h>
#include "worker/config/settings.h"
#include "worker/config/task_entry.h"

namespace ddprun::worker {
namespace {

using settings::Command;
using settings::unbound;
using Kind = settings::Setting::Kind;

[[noreturn]] void print_and_exit(const std::string& text) {
  std::cout << text << std::flush;
  std::exit(EXIT_SUCCESS);
}

std::string names_of(const std::vector<TaskEntry>& tasks) {
  std::vector<std::string> names;
  for (const auto& task : tasks) names.push_back(task.name);
  return one_of(names);
}

/// What may come before or in place of a task.
Command make_program(const std::vector<TaskEntry>& tasks) {
  Command command;
  command.name = "worker";
  command.description =
      "trains a model on one or many processes. Start it with ddprun, torchrun or srun, or alone.";
  command.settings = {
      settings::help_flag(),
      unbound("version", Kind::kSwitch, "print the version and exit"),
      unbound("config", Kind::kText, "read the task and its settings from a TOML file").type("FILE"),
      unbound("task", Kind::kText, "one of the tasks or commands below").not_a_flag(),
  };
  command.positionals = {{"task", "TASK"}};
  command.footer = "Tasks\n";
  for (const auto& task : tasks)
    command.footer += "  " + task.name + std::string(26 - task.name.size(), ' ') + task.description + "\n";
  command.footer += R"(
Commands
  env                       print what a training would find here, and what is wrong
  export CHECKPOINT OUT     write a model's weights for other programs
  flight FOLDER             compare the ranks' flight records after a hang or crash

`worker TASK --help` lists a task's flags. Each can be spelt with - or _, and set in a TOML file:
`worker --config FILE` or `worker TASK --config FILE`. `worker TASK --print-config` prints such a file.
Example: ddprun --nproc-per-node=2 worker mnist --data fashion-mnist --epochs 1)";
  return command;
}

/// The file of a --config at the beginning of the words; empty if there is none.
std::string leading_config(const std::vector<std::string>& words) {
  const std::string flag = "--config";
  if (words.empty()) return "";
  if (words[0].starts_with(flag + "=")) return words[0].substr(flag.size() + 1);
  return words[0] == flag && words.size() > 1 ? words[1] : "";
}

/// The task that the first word names, which is taken away, or the file of a leading --config.
const TaskEntry& find_task(std::vector<std::string>& words, const std::vector<TaskEntry>& tasks) {
  std::string name;
  if (const auto file = leading_config(words); !file.empty()) {
    name = settings::top_level_text(file, "task");
    if (name.empty())
      throw UsageError(file + ": expected task = \"" + names_of(tasks) + "\", or TASK before --config");
  } else {
    const Command program = make_program(tasks);
    const auto first = read_words({words.begin(), words.begin() + (words.empty() ? 0 : 1)}, program);
    if (first.is_true("help")) print_and_exit(help_text(program));
    if (first.is_true("version")) print_and_exit("worker " DDPRUN_VERSION "\n");
    name = first.text("task");
    if (name.empty()) throw UsageError("no task given, expected: " + names_of(tasks));
    words.erase(words.begin());
  }
  for (const auto& task : tasks)
    if (task.name == name) return task;
  throw UsageError("unknown task " + ddprun::quoted(name) + ", expected: " + names_of(tasks));
}

/// The configuration must outlive the command.
Command make_command(const TaskEntry& task, Config& config) {
  Command command;
  command.name = "worker " + task.name;
  command.task = task.name;
  command.description = task.description;
  command.footer = task.footer;
  command.positionals = task.positionals;
  command.settings = {
      settings::help_flag(),
      unbound("config", Kind::kText, "read settings from a TOML file; flags win over it")
          .type("FILE")
          .not_in_file(),
      unbound("print-config", Kind::kSwitch, "print the settings as such a file and exit").not_in_file(),
      settings::boolean("overwrite", config.overwrite, "use the run folder even if it holds a run")
          .not_in_file(),
  };
  for (auto& setting : all_settings(config)) command.settings.push_back(std::move(setting));
  return command;
}

}  // namespace

Config parse_config(int argc, const char* const* argv, const std::vector<TaskEntry>& tasks) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  const TaskEntry& task = find_task(words, tasks);
  Config config;
  config.task = task.name;
  task.set_defaults(config);  // the help shows them
  const Command command = make_command(task, config);
  const settings::Values typed = read_words(words, command);
  if (typed.is_true("help")) print_and_exit(help_text(command));
  settings::Values values;
  if (typed.given("config"))
    values = settings::read_toml(typed.text("config"), command);
  else
    require(command, typed);
  values.overlay(typed);
  values.apply(command.settings, task.name);
  task.set_defaults(config);  // again: some depend on what was given, which wins
  values.apply(command.settings, task.name);
  settle_defaults(config, values);
  validate(config);
  if (typed.is_true("print-config")) print_and_exit(to_toml(command, /*whole=*/true));
  config.train.config_json = to_json(config);
  return config;
}

std::string to_json(const Config& config) {
  Config copy = config;  // settings are bound to what they may set
  nlohmann::ordered_json json;
  for (const auto& setting : all_settings(copy)) {
    if (!setting.belongs_to(config.task) || !setting.kept) continue;
    const auto value = setting.get();
    json[setting.key()] =
        value ? std::visit([](const auto& one) { return nlohmann::ordered_json(one); }, *value) : nullptr;
  }
  // A path is bytes, JSON is UTF-8.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string to_toml(const Config& config) {
  Config copy = config;
  Command command;
  command.task = config.task;
  command.settings = all_settings(copy);
  return to_toml(command, /*whole=*/false);
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
