#include "worker/config/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>

#include <ddprun/common/errors.h>
#include <ddprun/common/spelling.h>
#include "worker/config/flags.h"
#include "worker/config/toml.h"

namespace ddprun::worker {
namespace {

/// The file of a --config at the beginning of the words; empty if there is none.
std::string leading_config(const std::vector<std::string>& words) {
  constexpr const char* kFlag = "--config";
  if (words.empty()) return "";
  if (words[0].starts_with(std::string(kFlag) + "=")) return words[0].substr(9);
  return words[0] == kFlag && words.size() > 1 ? words[1] : "";
}

std::string names_of(const std::vector<TaskHelp>& tasks) {
  std::vector<std::string> names;
  for (const auto& task : tasks) names.push_back(task.name);
  return one_of(names);
}

/// The first thing on the command line that nobody understood; empty if there is none.
std::string first_extra(const CLI::App& app) {
  for (const auto* part : app.get_subcommands())
    if (const auto extras = part->remaining(); !extras.empty()) return extras.front();
  const auto extras = app.remaining();
  return extras.empty() ? "" : extras.front();
}

/// CLI11's message where it names flag, expectation and value; our own words elsewhere.
std::string explain(const CLI::ParseError& error, const CLI::App& app, const std::vector<TaskHelp>& tasks) {
  const auto extra = first_extra(app);
  const bool no_task = app.get_subcommands().empty();
  if (extra.rfind('-', 0) == 0) return "unknown flag '" + extra + "', see worker --help";
  if (!extra.empty())
    return no_task ? "unknown task '" + extra + "', expected: " + names_of(tasks)
                   : "unknown argument '" + extra + "'";
  if (no_task) return "no task given, expected: " + names_of(tasks);
  const std::string text = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)
    return text.substr(0, text.find(':')) + ": expected one value";
  return text;
}

std::string default_text(const Setting& setting) {
  const auto value = setting.get();
  if (!value) return "";
  if (const auto* integer = std::get_if<std::int64_t>(&*value)) return std::to_string(*integer);
  if (const auto* text = std::get_if<std::string>(&*value)) return *text;
  if (const auto* number = std::get_if<double>(&*value)) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", *number);
    return text;
  }
  return "";
}

/// The flags of one task, and which setting each is for.
class TaskFlags {
 public:
  TaskFlags(CLI::App& app, const TaskHelp& task, const std::vector<Setting>& settings) : task_(task) {
    app.add_option("--config", config_file_, "settings from a TOML file; the command line wins")
        ->type_name("FILE");
    app.add_flag(both_spellings("--print-config"), print_config_,
                 "print the settings as such a file and end");
    app.add_flag("--overwrite", overwrite_, "use the run folder even if it holds a run");
    for (const auto& setting : settings)
      if (setting.belongs_to(task.name)) add(app, setting);
    for (const auto& [name, shown] : task.positionals) {
      const auto setting = std::find_if(settings.begin(), settings.end(),
                                        [&, name = name](const Setting& one) { return one.name == name; });
      ensure(setting != settings.end(), "a positional is a setting");
      auto* option = app.add_option_function<std::string>(
          shown, [](const std::string&) {}, setting->help);
      options_.insert(options_.begin(), {option, &*setting});  // a flag of the same name comes later and wins
      required_.push_back({&*setting, shown});
    }
  }

  CommandLine result() const {
    CommandLine line;
    line.task = task_.name;
    line.config_file = config_file_;
    line.print_config = print_config_;
    line.overwrite = overwrite_;
    std::map<const Setting*, std::string> given;
    for (const auto& [option, setting] : options_)
      if (option->count() > 0) given[setting] = text_of(*option, *setting);
    if (config_file_.empty())
      for (const auto& [setting, shown] : required_)
        if (given.count(setting) == 0) throw UsageError(task_.name + ": " + shown + " is missing" + usage());
    line.given.assign(given.begin(), given.end());
    return line;
  }

 private:
  void add(CLI::App& app, const Setting& setting) {
    const auto names = both_spellings(setting.flag());
    CLI::Option* option = nullptr;
    if (setting.kind == Setting::Kind::kBoolean)
      option = app.add_flag(names)->description(setting.help);
    else
      option = app.add_option_function<std::string>(
                      names, [](const std::string&) {}, setting.help)
                   ->type_name(setting.type_name)
                   ->default_str(default_text(setting));
    option->group(setting.section);
    options_.emplace_back(option, &setting);
  }

  static std::string text_of(const CLI::Option& option, const Setting& setting) {
    const std::string text = option.results().back();
    if (!setting.negated) return text;
    return text == "true" ? "false" : text == "false" ? "true" : text;
  }

  std::string usage() const {
    std::string text = "; usage: worker " + task_.name;
    for (const auto& [setting, shown] : required_) text += " " + shown;
    return text;
  }

  const TaskHelp& task_;
  std::vector<std::pair<CLI::Option*, const Setting*>> options_;
  std::vector<std::pair<const Setting*, std::string>> required_;
  std::string config_file_;
  bool print_config_ = false, overwrite_ = false;
};

}  // namespace

std::string task_of_words(const std::vector<std::string>& words) {
  if (const auto file = leading_config(words); !file.empty()) return task_of_toml(file);
  return words.empty() || words[0].starts_with("-") ? "" : words[0];
}

CommandLine parse_command_line(const std::vector<std::string>& words, const std::vector<TaskHelp>& tasks,
                               const std::vector<Setting>& settings) {
  CLI::App app(
      "Distributed data-parallel training in C++. Start it under ddprun (or torchrun, srun), or alone.",
      "worker");
  app.require_subcommand(1);
  app.formatter(std::make_shared<HelpFormatter>());
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_version_flag("--version", "worker " DDPRUN_VERSION);
  app.footer(
      "worker TASK --help shows a task's flags. Every flag may be spelt with - or _, and set in a TOML "
      "file:\n"
      "worker --config FILE, or worker TASK --config FILE; worker TASK --print-config prints such a file.\n"
      "Example: ddprun --nproc-per-node=2 worker mnist --data fashion-mnist --epochs 1");
  const auto task = task_of_words(words);
  if (const auto file = leading_config(words); !file.empty() && task.empty())
    throw UsageError(file + ": expected task = \"" + names_of(tasks) + "\", or TASK before --config");
  std::unique_ptr<TaskFlags> flags;
  for (const auto& entry : tasks) {
    auto* part = app.add_subcommand(entry.name, entry.description);
    part->footer(entry.footer);
    if (entry.name == task) flags = std::make_unique<TaskFlags>(*part, entry, settings);
  }
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  if (!leading_config(words).empty()) reversed.push_back(task);
  try {
    app.parse(reversed);
  } catch (const CLI::Success& success) {  // --help, --version
    std::exit(app.exit(success));
  } catch (const CLI::ParseError& error) {
    throw UsageError(explain(error, app, tasks));
  }
  ensure(flags != nullptr, "a parsed command line names a task");
  return flags->result();
}

}  // namespace ddprun::worker
