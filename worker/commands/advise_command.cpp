#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include <ddprun/common/errors.h>
#include <ddprun/common/settings/command.h>
#include <ddprun/common/text.h>
#include <ddprun/report/metric_sink.h>
#include <ddprun/train/record/run_report.h>
#include "worker/commands/advice.h"
#include "worker/commands/commands.h"
#include "worker/config/config.h"
#include "worker/config/kept_checkpoints.h"
#include "worker/tasks/registry.h"

namespace ddprun::worker {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Empty if it is not there, or not whole.
json object_in(const std::string& text) {
  auto value = json::parse(text, nullptr, false);
  return value.is_object() ? value : json::object();
}

/// Of the newest branch; empty if that has not ended.
json summary_of(const fs::path& run) try {
  return object_in(train::newest_summary(run, report::read_metrics_csv(run / "metrics.csv")));
} catch (const IoError&) {  // no metrics, or damaged ones
  return object_in(train::newest_summary(run, {}));
}

/// Of a member that a damaged file, or one of an earlier version, may lack.
template <typename Value>
Value member_or(const json& object, const char* name, Value fallback) {
  const auto found = object.find(name);
  if (found == object.end() || found->type() == json::value_t::string ||
      found->is_boolean() != std::is_same_v<Value, bool> || !found->is_primitive() || found->is_null())
    return fallback;
  return found->get<Value>();
}

void add_settings(RunFacts& run, const Config& config) {
  const auto& train = config.train;
  const auto& ddp = train.parallel;
  run.batch_size = train.batch_size;
  run.accumulate = train.accumulate;
  run.loader_threads = train.loader_threads;
  run.drop_last = train.drop_last;
  run.join = ddp.join;
  run.can_join = !ddp.fsdp && !ddp.zero1 && !ddp.nan_check && !ddp.static_graph && !ddp.sync_batch_norm &&
                 train.accumulate == 1;
  run.can_compress = !ddp.fsdp && ddp.comm_hook == "none";
  run.find_unused = ddp.find_unused;
  run.scales_lr = train.optim.scale_lr;
  run.lr = train.optim.optimizer.lr;
  run.precision = train.precision.precision;
  run.fast = config.fast;
  Config plain;
  plain.task = config.task;
  entry_of(config.task).set_defaults(plain);
  run.lr_is_default = run.lr == plain.train.optim.optimizer.lr;
}

void add_environment(RunFacts& run, const json& environment) {
  run.ranks = member_or(environment, "world_size", 1);
  run.ranks_on_host = member_or(environment, "local_world_size", 0);
  run.cpus = member_or(environment, "cpus", 0);
  run.threads_per_rank = std::max(1, member_or(environment, "threads_per_rank", 1));
  run.cpu_has_bf16 = member_or(environment, "cpu_bf16", false);
  run.on_gpu = environment.value("device", json()).dump().starts_with("\"cuda");
}

void add_times(RunFacts& run, const json& summary) {
  if (const auto samples = member_or(summary, "training_samples", std::int64_t{0}); samples > 0)
    run.training_samples = samples;
  const auto time = summary.value("time", json::object());
  const double data = member_or(time, "data_wait_seconds", 0.0),
               communication = member_or(time, "communication_seconds", 0.0),
               whole = data + communication + member_or(time, "compute_seconds", 0.0);
  if (whole <= 0) return;
  run.data_share = data / whole;
  run.communication_share = communication / whole;
}

}  // namespace

int run_advise_command(int argc, char** argv) {
  fs::path folder;
  settings::Command command;
  command.name = "worker advise";
  command.description =
      "checks a run against good habits (waiting, batches, learning rate, cores, precision), and prints a "
      "line for each flag to change.";
  command.positionals = {{"run", "RUN"}};
  command.settings = {settings::help_flag(), settings::path("run", folder, "its folder").not_a_flag()};
  if (!apply_words({argv + 1, argv + argc}, command)) return 0;
  const std::string file = folder / "config.toml";
  if (!is_run_folder(folder) || train::text_if_any(file).empty())
    throw UsageError("RUN: expected the folder of a run, with its config.toml, got " +
                     single_quoted(folder.string()));
  const char* const words[] = {"worker", "--config", file.c_str()};
  RunFacts run;
  add_settings(run, parse_config(3, words, all_tasks(), all_commands()));
  add_environment(run, object_in(train::text_if_any(folder / "environment.json")));
  const auto summary = summary_of(folder);
  add_times(run, summary);
  if (summary.empty())
    std::cout << "the run has not ended: its waiting times and batches are not known yet\n";
  const auto lines = advice(run);
  for (const auto& line : lines) std::cout << line << "\n";
  if (lines.empty()) std::cout << "nothing to advise\n";
  return 0;
}

}  // namespace ddprun::worker
