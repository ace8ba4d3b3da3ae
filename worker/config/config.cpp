#include "worker/config/config.h"

#include <ATen/Context.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/settings/command.h>
#include <ddprun/common/text.h>
#include <ddprun/ddp/norm_relu.h>
#include <ddprun/group/cuda_backend.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/loop/resume.h>
#include <ddprun/train/model/cpu_abilities.h>
#include <ddprun/train/model/small_convolutions.h>
#include <ddprun/train/state/checkpoint.h>
#include "worker/config/kept_checkpoints.h"

namespace ddprun::worker {
namespace {

using settings::Command;
using settings::Given;
using settings::unbound;
using settings::Values;
using Kind = settings::Setting::Kind;

[[noreturn]] void print_and_exit(const std::string& text) {
  write_stdout(text);
  std::exit(EXIT_SUCCESS);
}

[[noreturn]] void help_and_exit(const std::string& text) {
  settings::print_help(text);
  std::exit(EXIT_SUCCESS);
}

template <typename Entry>
std::vector<std::string> names_of(const std::vector<Entry>& entries) {
  std::vector<std::string> names;
  for (const auto& entry : entries) names.push_back(entry.name);
  return names;
}

/// What the first word may be.
struct Words {
  const std::vector<TaskEntry>& tasks;
  const std::vector<CommandEntry>& commands;

  std::string expected() const {
    return "expected a task (" + one_of(names_of(tasks)) + ") or a command (" + one_of(names_of(commands)) +
           ")";
  }
};

/// The flags that may come before or instead of a task.
Command make_program(const Words& known) {
  Command command;
  command.name = "worker";
  command.description =
      "trains a model with one process or several. Start it with ddprun, torchrun or srun, or alone.";
  command.settings = {
      settings::help_flag(),
      unbound("version", Kind::kSwitch, "print the version and exit"),
      unbound("config", Kind::kText, "read the task and its settings from a TOML file").type("FILE"),
      unbound("task", Kind::kText, "one of the tasks or commands below").not_a_flag(),
  };
  command.positionals = {{"task", "TASK"}};
  command.footer = "tasks\n";
  for (const auto& task : known.tasks) command.footer += settings::help_line(task.name, task.description);
  command.footer += "\ncommands\n";
  for (const auto& entry : known.commands)
    command.footer += settings::help_line(entry.name + " " + entry.usage, entry.description);
  command.footer +=
      "\n`worker TASK --help` shows a task's most used flags, `worker TASK --help-all` all of them, and "
      "`worker "
      "COMMAND --help` a command's. Flags can be spelt with - or _; a task's flags can be set in a TOML "
      "file: "
      "`worker --config FILE` or `worker TASK --config FILE`. `worker TASK --print-config` prints such a "
      "file.\n"
      "Example: ddprun --nproc-per-node=2 worker mnist --data fashion-mnist --epochs 1";
  return command;
}

/// The file of a --config at the beginning of the words, or empty.
std::string leading_config(const std::vector<std::string>& words) {
  const std::string flag = "--config";
  if (words.empty()) return "";
  if (words[0].starts_with(flag + "=")) return words[0].substr(flag.size() + 1);
  return words[0] == flag && words.size() > 1 ? words[1] : "";
}

/// `worker --epochs 3 mnist`
void refuse_task_after_flags(const std::vector<std::string>& words, const Words& known) {
  if (words.empty() || !words[0].starts_with("--") || words[0] == "--help" || words[0] == "--version") return;
  for (std::size_t i = 1; i < words.size(); ++i)
    for (const auto& task : known.tasks)
      if (words[i] == task.name)
        throw UsageError("expected the task before its flags: worker " + task.name + " " + words[0] + " ...");
}

/// The task named by the first word, which this removes, or by the file of a leading --config.
const TaskEntry& find_task(std::vector<std::string>& words, const Words& known) {
  std::string name, place;
  if (const auto file = leading_config(words); !file.empty()) {
    train::put_back_half_replaced(file);
    const auto given = for_flag("--config", [&] { return settings::top_level_text(file, "task"); });
    name = given.text, place = given.source;
    if (name.empty())
      throw UsageError(
          file + ": names no task: expected an entry such as task = \"mnist\", or worker TASK --config " +
          file);
  } else {
    refuse_task_after_flags(words, known);
    const Command program = make_program(known);
    const auto first = read_words({words.begin(), words.begin() + (words.empty() ? 0 : 1)}, program);
    if (first.is_true("help")) help_and_exit(help_text(program));
    if (first.is_true("version")) print_and_exit("worker " DDPRUN_VERSION "\n");
    name = first.text("task");
    if (name.empty()) throw UsageError("no task given, " + known.expected());
    words.erase(words.begin());
  }
  for (const auto& task : known.tasks)
    if (task.name == name) return task;
  auto names = names_of(known.tasks);
  for (auto& command : names_of(known.commands)) names.push_back(std::move(command));
  const auto hint = settings::did_you_mean(name, names);
  throw UsageError(place + "unknown task " + single_quoted(name) + hint + (hint.empty() ? ", " : " ") +
                   known.expected());
}

/// The most common settings: what --help shows.
constexpr std::array kOften = {
    "data",        "out",       "epochs",      "max-steps", "batch-size", "lr",           "optimizer",
    "lr-schedule", "val-split", "limit-train", "seed",      "resume",     "overwrite",    "init-weights",
    "checkpoint",  "eval",      "device",      "precision", "config",     "print-config", "help"};

bool is_positional(const TaskEntry& task, const std::string& name) {
  return std::ranges::any_of(task.positionals,
                             [&](const auto& positional) { return positional.first == name; });
}

/// The configuration must outlive the command.
Command make_command(const TaskEntry& task, Config& config) {
  Command command;
  command.name = "worker " + task.name;
  command.task = task.name;
  command.description = task.description;
  command.footer = task.footer;
  command.positionals = task.positionals;
  command.foreign = other_programs_flags();
  command.settings = {
      settings::help_flag(),
      unbound("help-all", Kind::kSwitch, "show all flags and exit").only_typed(),
      unbound("config", Kind::kText, "read settings from a TOML file; flags win over it")
          .type("FILE")
          .not_in_file(),
      unbound("print-config", Kind::kSwitch, "print the settings as such a file and exit").not_in_file(),
      settings::boolean("summary", config.summary,
                        "print the model's layers, shapes, parameters and FLOPs, and exit")
          .not_in_file(),
      settings::boolean("find-lr", config.find_lr, "suggest a learning rate, with a figure, and exit")
          .not_in_file(),
      settings::boolean("find-batch-size", config.find_batch_size,
                        "suggest the largest batch size that fits in memory, with a figure, and exit")
          .not_in_file(),
      settings::boolean(
          "overwrite", config.train.overwrite,
          "start a new run in a folder that already holds a run, which is removed once the new one "
          "has its first checkpoint")
          .not_in_file(),
  };
  for (auto& setting : all_settings(config)) command.settings.push_back(std::move(setting));
  for (const char* name : kOften)
    for (const auto& setting : command.settings)
      if (setting.name == name && setting.belongs_to(task.name) && !is_positional(task, name)) {
        command.often.emplace_back(name);
        break;
      }
  return command;
}

/// Drops the task's defaults that contradict given settings.
void settle_defaults(Config& config, const TaskEntry& task) {
  auto& optim = config.train.optim;
  auto& checkpoint = config.train.checkpoint;
  const auto is_default = [&](const char* name) { return !config.stated.contains(name); };
  if (optim.clip_value > 0 && is_default("clip-norm")) optim.clip_norm = 0;
  auto& precision = config.train.precision;
  const bool is_fast = config.fast && !config.is_settled;
  if (is_fast && is_default("channels-last")) precision.channels_last = true;
  if (is_fast && is_default("cudnn-benchmark")) precision.cudnn_benchmark = true;
  // A static graph finds unused parameters by itself; where it cannot be used, every step must search.
  auto& parallel = config.train.parallel;
  if (parallel.static_graph && is_default("static-graph") &&
      (parallel.find_unused || parallel.join || parallel.fsdp))
    parallel.static_graph = false;
  if (task.leaves_unused && is_default("find-unused"))
    parallel.find_unused = !parallel.static_graph && !parallel.fsdp;
  // Without validation there are no metrics to choose or name checkpoints by.
  if (config.data.val_split > 0 || config.data.val_on_test) return;
  if (is_default("monitor")) checkpoint.monitor.clear();
  if (is_default("checkpoint-name")) checkpoint.filename.clear();
}

/// Rejects settings that exclude each other on every device.
void validate(const Config& config) {
  const auto& train = config.train;
  const auto& ddp = train.parallel;
  const auto refuse = [](bool both, const std::string& first, const std::string& second) {
    if (both) throw UsageError(first + " and " + second + ": expected at most one of them");
  };
  refuse(ddp.fsdp && ddp.zero1, "--fsdp", "--zero1");
  refuse(train.drop_last && ddp.join, "--drop-last", "--join");
  refuse(ddp.fsdp && ddp.comm_hook != "none", "--fsdp", "--comm-hook");
  refuse(ddp.fsdp && ddp.find_unused, "--fsdp", "--find-unused");
  refuse(ddp.fsdp && ddp.static_graph, "--fsdp", "--static-graph");
  refuse(ddp.fsdp && ddp.join, "--fsdp", "--join");
  refuse(ddp.zero1 && ddp.join, "--zero1", "--join");
  refuse(ddp.nan_check && ddp.join, "--nan-check", "--join");
  refuse(ddp.static_graph && ddp.join, "--static-graph", "--join");
  refuse(ddp.sync_batch_norm && ddp.join, "--sync-bn", "--join");
  refuse(train.accumulate > 1 && ddp.join, "--accumulate", "--join");
  refuse(train.optim.clip_norm > 0 && train.optim.clip_value > 0, "--clip-norm", "--clip-value");
  refuse(!config.sam.checkpoint.empty() && !config.model.init_weights.empty(), "--checkpoint",
         "--init-weights");
  for (const auto& [given, flag] : {std::pair(!config.model.init_weights.empty(), "--init-weights"),
                                    std::pair(!train.checkpoint.resume.empty(), "--resume"),
                                    std::pair(!config.sam.checkpoint.empty(), "--checkpoint")})
    refuse(!config.model.eval.empty() && given, "--eval", flag);
  refuse(!config.sam.checkpoint.empty() && config.sam.image_size > 0, "--checkpoint", "--image-size");
  refuse(!config.sam.checkpoint.empty() && !config.sam.architecture.empty(), "--checkpoint",
         "--architecture");
  refuse(!config.sam.points.empty() && config.sam.points_per_image > 0, "--points", "--points-per-image");
  refuse(!config.sam.points.empty() && config.sam.prompts_per_image > 0, "--points", "--prompts-per-image");
  if (config.sam.prompts_per_image * config.sam.points_per_image > 1024)
    throw UsageError(formatted("--prompts-per-image: expected at most 1024 points per image in all, got %ld",
                               config.sam.prompts_per_image * config.sam.points_per_image));
  refuse(!config.sam.embedding_cache.empty() && ddp.fsdp, "--embedding-cache", "--fsdp");
  if (!config.sam.embedding_cache.empty() && config.sam.freeze != "encoder")
    throw UsageError("--embedding-cache: add --freeze=encoder; otherwise training changes the encoder");
  if (train.checkpoint.resume == "auto" && train.out.empty())
    throw UsageError("--resume=auto: add --out, the folder of the run to continue");
}

/// How the model of a run was made, which its weights alone do not tell.
constexpr std::array kOfTheModel = {"architecture", "image-size",      "stem",          "dropout",
                                    "loss",         "label-smoothing", "test-time-flip"};

/// Where --eval or --init-weights names a run's folder: replaces it by the file that it stands for, and adds
/// the run's settings of the model and, for --eval, of the data, the seed that splits them and the precision.
/// For --eval also where it names a checkpoint of a run.
/// Initial weights that cannot be found are an error later, unless the run is resumed.
/// returns  what it has added
/// throws   UsageError for a run of another task
Values add_settings_of_run(Values& values, const std::string& flag, const TaskEntry& task) {
  const std::filesystem::path run = values.text(flag);
  auto weights = run;
  bool only_shape = false;  // of a checkpoint's file
  bool has_shape = false;   // which is the model's then, not a file that --architecture named
  std::string was_json;     // of this checkpoint: config.toml may be that of a later branch
  std::error_code error;
  try {
    weights = checkpoint_of(run, "--" + flag + ": ");
    only_shape = weights == run && flag != "eval";
    if (!only_shape || task.name == "sam")
      if (const auto state = run_of_weights(weights))
        was_json = state->config_json, has_shape = !state->model_config.empty();
  } catch (const IoError&) {
    if (flag == "eval") throw;
  }
  if (was_json.empty()) return {};
  Config plain;  // with the task's defaults
  plain.task = task.name;
  task.set_defaults(plain);
  auto settings = all_settings(plain);
  Values own;
  const auto add = [&](const std::string& name, const Given& given) {
    for (const auto& setting : settings) {
      if (setting.name != name || !setting.belongs_to(task.name) || values.given(name)) continue;
      const auto before = setting.get();
      if (setting.set(given.text).empty() && (setting.get() != before || name == "precision"))
        own.add(setting, given);  // the precision also where it is the default: --fast may have another
    }
  };
  for (const auto& setting : settings)
    if (setting.name == flag) own.add(setting, {weights.string(), "--" + flag});
  const auto was = nlohmann::json::parse(was_json);
  if (const auto of = was.value("task", task.name); of != task.name)
    throw UsageError("--" + flag + ": " + run.string() + (weights == run ? " is of" : " is a run of") +
                     " the task " + of);
  const bool other_points =
      values.given("points") || values.given("points-per-image") || values.given("prompts-per-image");
  const auto is_of_data = [&](const settings::Setting& setting) {
    const bool of_points = setting.name.starts_with("points") || setting.name == "prompts-per-image";
    const bool may_be_other_data = values.given("data") && setting.name != "val-split";
    return setting.section == "data" && !may_be_other_data && !(other_points && of_points);
  };
  for (const auto& setting : settings) {
    if (has_shape && setting.name == "architecture") {
      add(setting.name, {"", weights.string()});
      continue;
    }
    if (only_shape) continue;
    const auto value = was.find(setting.key());
    if (value == was.end() || value->is_null()) continue;
    const auto text = value->is_string() ? value->get<std::string>() : value->dump();
    const bool of_model = std::ranges::find(kOfTheModel, setting.name) != kOfTheModel.end();
    if (!of_model &&
        (flag != "eval" || !(is_of_data(setting) || setting.name == "seed" || setting.name == "precision")))
      continue;
    if (setting.name == "data" && text.find('/') != std::string::npos &&
        !std::filesystem::exists(text, error))
      throw UsageError("--" + flag + ": " + weights.string() + " was trained on " + one_line(text) +
                       ", which is not here; add --data");
    add(setting.name, {text, weights.string()});
  }
  const auto folder = weights == run ? run.parent_path().parent_path() : run;
  if (const auto shape = folder / "best/config.json";
      task.name == "sam" && !has_shape && is_run_folder(folder) && std::filesystem::exists(shape, error))
    add("architecture", {shape.string(), shape.string()});
  values.overlay(own);
  return own;
}

/// A run cannot begin from the one that it replaces: begun again, after it was killed or interrupted, it
/// would find its own beginning there. throws UsageError
void check_not_overwritten(const Values& values) {
  namespace fs = std::filesystem;
  const auto out = values.text("out"), resume = values.text("resume");
  if (!values.is_true("overwrite") || out.empty() || values.given("eval") ||
      process_env("RANK").value_or("0") != "0")
    return;
  train::put_back_half_replaced(out);
  std::error_code error;
  const auto folder = fs::weakly_canonical(out, error);
  const auto in_folder = [&](const std::string& path) {
    const auto inside = fs::weakly_canonical(path, error).lexically_relative(folder).string();
    return path.empty() || error || inside.starts_with("..") ? "" : inside;
  };
  // Which continues the run.
  if (resume == "auto" ? !train::state_files(train::RunFolder(out)).empty() : !in_folder(resume).empty())
    return;
  for (const char* flag : {"config", "init-weights", "checkpoint", "architecture"}) {
    const auto inside = in_folder(values.text(flag));
    if (inside.empty()) continue;
    const std::string begin = std::string("--") + flag + ": " + one_line(values.text(flag));
    if (inside == "config.toml")
      throw UsageError(begin + " is where the run writes its own settings; use another --out");
    // A folder of save_pretrained's may be the run's as well: what it reads there is not the run's.
    const bool is_run = inside == "." && is_run_folder(folder) &&
                        !(std::string(flag) == "checkpoint" && fs::exists(folder / "config.json", error));
    const auto is_listed = [&](const fs::path& file) {
      return inside != "." && (file.lexically_relative(folder).string() + "/").starts_with(inside + "/");
    };
    if (is_run || (inside.starts_with("checkpoints/") && train::is_checkpoint_name(inside)) ||
        std::ranges::any_of(train::RunFolder(folder).files(), is_listed))
      throw UsageError(begin +
                       " belongs to the run that --overwrite replaces, which a new run cannot begin "
                       "from; use another --out");
  }
}

}  // namespace

Config parse_config(int argc, const char* const* argv, const std::vector<TaskEntry>& tasks,
                    const std::vector<CommandEntry>& commands) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  const TaskEntry& task = find_task(words, {tasks, commands});
  Config config;
  config.task = task.name;
  task.set_defaults(config);  // the help shows them
  const Command command = make_command(task, config);
  const Values typed = read_words(words, command);
  if (typed.is_true("help")) help_and_exit(help_text(command));
  if (typed.is_true("help-all")) help_and_exit(whole_help_text(command));
  Values values;
  if (typed.given("config")) {
    train::put_back_half_replaced(typed.text("config"));
    values = for_flag("--config", [&] { return settings::read_toml(typed.text("config"), command); });
    if (typed.given("eval"))  // the file of a run says what it began with
      for (const char* weights : {"init-weights", "checkpoint"}) values.remove(weights);
  } else if (!typed.given("eval")) {  // which trains nothing
    require(command, typed);
  }
  values.overlay(typed);
  check_not_overwritten(values);
  if (values.given("eval")) add_settings_of_run(values, "eval", task);
  Values of_run;
  if (values.given("init-weights")) of_run = add_settings_of_run(values, "init-weights", task);
  values.apply(command.settings, task.name);
  if (process_env("RANK").value_or("0") == "0")
    for (const auto& note : values.notes) log_info(note);
  task.set_defaults(config);  // again: some depend on given settings, which win
  values.apply(command.settings, task.name);
  for (const auto& [name, given] : values.all())
    if (!of_run.given(name)) config.stated.insert(name);  // a resumed run has its own
  settle(config, task);
  if (typed.is_true("print-config"))
    print_and_exit("# A line such as \"# out = ...\" shows an example; the setting itself has no value.\n" +
                   to_toml(command, /*whole=*/true));
  return config;
}

bool trains(const Config& config) {
  return !config.find_lr && !config.find_batch_size && !config.summary && !config.estimate &&
         config.model.eval.empty();
}

void settle(Config& config, const TaskEntry& task) {
  settle_defaults(config, task);
  validate(config);
  config.train.config_json = to_json(config);
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
  if (config.stated.contains("timeout")) options.timeout = options.connect_timeout = config.timeout;
  options.device = config.device;
  options.backend = config.backend;
  return options;
}

void make_deterministic() {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
}

namespace {

bool has_amx() { return train::cpu_abilities().contains("amx_bf16"); }

}  // namespace

void settle_on_device(Config& config, at::Device device, int rank) {
  auto& precision = config.train.precision.precision;
  if (config.fast && !std::exchange(config.is_settled, true)) {
    const bool classifies_images = config.task == "mnist" || config.task == "cifar10";
    if (device.is_cuda() && !config.stated.contains("cuda-graph"))
      config.train.cuda_graph = train::GraphChoice::kAuto;
    if (device.is_cpu() && has_amx() && classifies_images && !config.stated.contains("precision"))
      precision = train::Precision::kBf16Mixed;
    config.train.config_json = to_json(config);
  }
  if (precision != train::Precision::k16Mixed) return;
  const auto& ddp = config.train.parallel;
  for (const auto& [given, flag] : {std::pair(ddp.nan_check, "--nan-check"), std::pair(ddp.join, "--join")})
    if (given && device.is_cuda())
      throw UsageError(std::string(flag) +
                       ": expected --precision=32 or --precision=bf16-mixed, got 16-mixed");
  if (device.is_cuda()) return;
  precision = train::Precision::kBf16Mixed;
  config.train.config_json = to_json(config);
  if (rank == 0)
    log_info(std::string(config.stated.contains("precision") ? "--precision=16-mixed"
                                                             : "16-mixed, the task's default,") +
             " becomes bf16-mixed on a CPU");
}

void use_fast_cpu(const Config& config, int rank) {
  const bool amx = has_amx(), bf16 = config.train.precision.precision != train::Precision::k32;
  if (amx && bf16) train::compute_small_convolutions_as_products();
  if (bf16) ddp::fuse_norm_relu();
  if (rank == 0)
    log_info(std::string("--fast, on a CPU with") + (amx ? "" : "out") +
             " AMX: " + (bf16 ? "bf16-mixed" : "32 bits") +
             (config.train.precision.channels_last ? ", channels-last" : "") +
             (amx && bf16 ? ", small convolutions as products of matrices" : "") +
             (bf16 ? ", batch norm with ReLU in one pass" : ""));
}

bool is_for_cpu(const Config& config) {
  return config.device == ddp::DeviceChoice::kCpu ||
         (config.device == ddp::DeviceChoice::kAuto && !ddp::has_cuda_driver());
}

at::Device set_up_device(Config& config, const WorkerEnv& env) {
  const auto chosen = ddp::choose_device(config.device, env.local_rank);
  const bool on_gpu = chosen.device.is_cuda();
  if (on_gpu) config.train.gpu_uuid = chosen.id, config.train.device_name = chosen.name;
  settle_on_device(config, chosen.device, env.rank);
  if (!on_gpu && config.fast) use_fast_cpu(config, env.rank);
  if (config.backend == ddp::BackendChoice::kNccl && !on_gpu)
    throw UsageError("--backend=nccl: this rank computes on the CPU; use --backend=gloo");
  return chosen.device;
}

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
  const auto now = json::parse(to_json(config));
  for (const auto& setting : settings) {
    const auto value = merged.find(setting.key());
    if (value == merged.end() || value->is_null() || !setting.belongs_to(config.task)) continue;
    const bool is_default = *value == defaults[setting.key()];
    if (is_default && !setting.get() && !stated.contains(setting.name))
      continue;                                                 // gives way to a stated one
    if (now[setting.key()] != *value) assign(setting, *value);  // JSON has not every byte of a path
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
  train::TrainingState state;
  std::error_code error;
  if (resume == "auto") {
    const auto found = train::find_resume(config.train.out, [](const auto&, const auto&) {});
    if (!found.found()) return "";
    state = found.state;
  } else if (resume.empty() || !fs::exists(resume, error)) {
    return "";
  } else {
    state = train::to_training_state(serialize::peek_pt(resume), resume);
  }
  return config_of_state(state);
}

std::string config_of_state(const train::TrainingState& state) {
  if (state.model_config.empty()) return state.config_json;
  auto json = json::parse(state.config_json);
  json[kModelShape] = state.model_config;
  return json.dump(-1, ' ', false, json::error_handler_t::replace);
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
        was[key] == is[key])
      continue;
    const bool stated = config.stated.contains(setting.name);
    if (setting.name == "checkpoint" && config.stated.contains("init-weights")) continue;
    const std::string separator = resumed.changes.empty() ? "--" : ", --";
    if (std::ranges::find(kOfEachRun, setting.name) != kOfEachRun.end()) {
      if (setting.name == "init-weights" && !stated && trains(config) &&
          !config.stated.contains("checkpoint")) {
        // Not read again, but said.
        assign(setting, was[key]);
        merged[key] = was[key];
      }
      if (setting.name == "epochs" && !stated)
        resumed.changes +=
            separator + "epochs " + shown(is[key]) + ", the default, replaces the run's " + shown(was[key]);
      continue;
    }
    if (setting.name == "optimizer" && stated)
      throw UsageError("--optimizer: expected " + shown(was[key]) + ", whose state the checkpoint has, got " +
                       shown(is[key]));
    assign(before[i], was[key]);
    if (!stated) {
      assign(setting, was[key]);
      merged[key] = was[key];
    } else {
      resumed.changes +=
          separator + setting.name + " " + shown(is[key]) + " replaces the checkpoint's " + shown(was[key]);
    }
  }
  if (was.contains("weight_decay") && was["weight_decay"].is_null())
    resumed.before.train.optim.optimizer.weight_decay.reset();
  // Settled again only for a --fast that the run did not have.
  const bool settled = resumed.config.is_settled;
  resumed.config.is_settled = settled && was.value("fast", json()) == true;
  settle_merged(resumed.config, settings, merged, task);
  resumed.config.is_settled = settled;
  if (const auto shape = was.find("architecture"); shape != was.end()) {
    if (shape->is_null() && !config.stated.contains("architecture")) {
      resumed.config.sam.architecture.clear();  // the run began with the shape of given weights
      resumed.config.train.config_json = to_json(resumed.config);
    }
    if (*shape == is["architecture"]) resumed.config.stated.erase("architecture");  // its file may be gone
  }
  return resumed;
}

}  // namespace ddprun::worker
