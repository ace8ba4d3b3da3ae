#include "launcher/job/job.h"

#include <algorithm>

#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include "launcher/host/cpus.h"
#include "launcher/plan/launch_plan.h"

namespace ddprun::launcher {
namespace {

bool contains(const std::vector<std::string>& texts, const std::string& text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

std::string describe_stream(const char* name, const StreamPlan& plan) {
  std::vector<std::string> targets;
  if (plan.inherit || plan.console)
    targets.push_back(plan.prefix.empty() ? "console" : "console with prefix " + plan.prefix);
  if (!plan.inherit && !plan.file.empty()) targets.push_back(printable(plan.file.string()));
  if (!plan.inherit && !plan.filtered_file.empty())
    targets.push_back(printable(plan.filtered_file.string()) + " (filtered)");
  return std::string("  ") + name + ": " + (targets.empty() ? "nowhere" : joined(targets, ", ")) + "\n";
}

}  // namespace

Round shown_round(const Options& options, int workers, const std::string& run_id) {
  const NodesOptions& nodes = options.nodes;
  Round round = static_round(0, workers, nodes.endpoint.host, options.master_port.value_or(0), run_id);
  round.max_restarts = options.restart.max_restarts;
  if (!nodes.several()) return round;
  const int node = nodes.node_rank.value_or(0);
  round.group_rank = nodes.group_rank.value_or(node);
  round.group_world_size = nodes.group_world_size.value_or(nodes.max_nodes);
  round.first_rank = round.first_role_rank = node * workers;
  round.first_local_rank = nodes.first_local_rank;
  round.local_world_size = nodes.local_world_size.value_or(workers);
  round.world_size = round.role_world_size = nodes.max_nodes * workers;
  return round;
}

std::string dry_run_text(const std::string& program, const std::vector<WorkerSpec>& specs,
                         const std::vector<WorkerOutputPlan>& outputs,
                         const std::vector<std::string>& inherited) {
  std::string text;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const WorkerSpec& spec = specs[i];
    text += "rank " + std::to_string(spec.rank) + " (local_rank: " + std::to_string(spec.local_rank) + ")\n";
    text += "  runs: " + printable(program) + "\n";
    text += "  argv: " + shown_command(spec.argv) + "\n";
    for (const std::string& variable : spec.env)
      if (variable == "MASTER_PORT=0") {
        text += "  env: MASTER_PORT=(a free port)\n";
      } else if (contains(worker_variable_names(), variable.substr(0, variable.find('='))) ||
                 !contains(inherited, variable)) {
        text += "  env: " + printable(redacted_variable(variable)) + "\n";
      }
    if (!spec.cpus.empty()) text += "  cpus: " + describe_cpus(spec.cpus) + "\n";
    text += describe_stream("stdout", outputs[i].out) + describe_stream("stderr", outputs[i].err);
  }
  return text;
}

std::string rank_line(const WorkerSpec& spec, const std::string& host, pid_t pid) {
  const auto value = [&](const std::string& name) -> std::string {
    for (const std::string& variable : spec.env)
      if (variable.starts_with(name + "=")) return printable(variable.substr(name.size() + 1));
    return "";
  };
  std::string text = "rank " + value("RANK") + " of " + value("WORLD_SIZE") + ": local rank " +
                     value("LOCAL_RANK") + " on " + host + ", pid " + std::to_string(pid) +
                     ", MASTER_ADDR=" + value("MASTER_ADDR") + " MASTER_PORT=" + value("MASTER_PORT");
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"})
    if (const std::string gpus = value(name); !gpus.empty()) return text + " " + name + "=" + gpus;
  return text;
}

}  // namespace ddprun::launcher
