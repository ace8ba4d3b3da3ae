#include "launcher/cli/node_options.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>

#include <ddprun/common/errors.h>
#include <ddprun/common/settings/command.h>
#include <ddprun/common/text.h>
#include "launcher/cli/options.h"

namespace ddprun::launcher {
namespace {

// -- lists --

using Names = std::vector<std::string>;

constexpr std::size_t kLongestName = 255, kMostDigits = 18;
constexpr std::size_t kMostEndpoints = 3;  // nodes that may run the coordinator, one after the other

bool is_name_character(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
         c == '.';
}

std::optional<std::size_t> number(std::string_view text) {
  if (text.size() > kMostDigits) return {};
  return parse_integer<std::size_t>(text, 0, SIZE_MAX);
}

/// Adds "1-3" or "7", with leading zeros as in the first number.
bool add_range(std::string_view text, std::size_t max_names, Names& numbers) {
  const auto dash = text.find('-');
  const auto first_text = text.substr(0, dash);
  const auto first = number(first_text);
  const auto last = dash == std::string_view::npos ? first : number(text.substr(dash + 1));
  if (!first || !last || *last < *first) return false;
  if (*last - *first >= max_names - numbers.size()) return false;
  for (std::size_t i = *first; i <= *last; ++i) {
    const std::string digits = std::to_string(i);
    const auto zeros = first_text.size() - std::min(first_text.size(), digits.size());
    numbers.push_back(std::string(zeros, '0') + digits);
  }
  return true;
}

/// The content of a bracket: "1-3,7".
std::optional<Names> expand_bracket(std::string_view text, std::size_t max_names) {
  Names numbers;
  for (const auto range : host_list_parts(text))
    if (!add_range(range, max_names, numbers)) return {};
  return numbers;
}

/// Every name followed by every number.
Names combined(const Names& names, const Names& numbers) {
  Names longer;
  for (const std::string& name : names)
    for (const std::string& digits : numbers) longer.push_back(name + digits);
  return longer;
}

/// One entry of the list: "r[1-2]n[1-4]".
std::optional<Names> expand_name(std::string_view text, std::size_t max_names) {
  if (text.empty()) return {};
  Names names{""};
  for (std::size_t i = 0; i < text.size();) {
    if (names[0].size() > kLongestName) return {};
    if (text[i] == '[') {
      const auto end = text.find(']', i);
      if (end == std::string_view::npos) return {};
      const auto numbers = expand_bracket(text.substr(i + 1, end - i - 1), max_names / names.size());
      if (!numbers) return {};
      names = combined(names, *numbers);
      i = end + 1;
    } else {
      if (!is_name_character(text[i])) return {};
      for (std::string& name : names) name += text[i];
      ++i;
    }
  }
  return names;
}

// -- the step's variables --

constexpr int kMaxTasks = 100'000;
constexpr std::int64_t kLastId = 0xfffffffe;
/// Step numbers from here on stand for batch scripts and salloc's shells.
constexpr std::int64_t kFirstSpecialStep = 0xfffffff0;

/// Below the kernel's ephemeral ports, and below torchrun's defaults.
constexpr int kFirstDerivedPort = 20000, kDerivedPorts = 9000;

constexpr const char* kStepVariables[] = {
    "SLURM_JOB_ID",        "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_NODELIST", "SLURMD_NODENAME",      "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_NODEID",        "SLURM_LOCALID",        "SLURM_PROCID"};

[[noreturn]] void reject(const std::string& name, const std::string& expected, const EnvLookup& environment) {
  reject_variable(name, expected,
                  {"in a Slurm job step",
                   "srun",
                   "SLURM_STEP_ID",
                   {std::begin(kStepVariables), std::end(kStepVariables)}},
                  environment);
}

std::int64_t read_number(const EnvLookup& environment, const std::string& name, std::int64_t low,
                         std::int64_t high) {
  const auto text = environment(name);
  const auto value = text ? parse_integer(*text, low, high) : std::nullopt;
  if (!value)
    reject(name, "a number from " + std::to_string(low) + " to " + std::to_string(high), environment);
  return *value;
}

/// Reads the nodes' names; this node's must be at SLURM_NODEID.
void read_nodes(const EnvLookup& environment, SlurmStep& step) {
  const auto size = static_cast<std::size_t>(read_number(environment, "SLURM_STEP_NUM_NODES", 1, step.tasks));
  const auto text = environment("SLURM_STEP_NODELIST");
  const auto names = text ? expand_host_list(*text, kMaxTasks) : std::nullopt;
  if (!names) reject("SLURM_STEP_NODELIST", "a host list such as n[1-3,7]", environment);
  if (names->size() != size)
    reject("SLURM_STEP_NODELIST", "as many names as SLURM_STEP_NUM_NODES=" + std::to_string(size),
           environment);
  step.nodes = *names;
  step.node = static_cast<int>(read_number(environment, "SLURM_NODEID", 0, static_cast<int>(size) - 1));
  const std::string& listed = step.nodes[static_cast<std::size_t>(step.node)];
  const auto own = environment("SLURMD_NODENAME");
  if (own != listed)
    reject("SLURMD_NODENAME",
           single_quoted(listed) + ", node " + std::to_string(step.node) + " of SLURM_STEP_NODELIST,",
           environment);
}

void read_node_tasks(const EnvLookup& environment, SlurmStep& step) {
  const std::string name = "SLURM_STEP_TASKS_PER_NODE";
  const auto text = environment(name);
  const auto counts = text ? expand_counts(*text, step.nodes.size()) : std::nullopt;
  if (!counts) reject(name, "numbers of tasks such as 2(x3),1", environment);
  std::int64_t sum = 0;
  for (const int count : *counts) sum += count;
  if (counts->size() != step.nodes.size() || sum != step.tasks)
    reject(name, std::to_string(step.tasks) + " tasks on " + std::to_string(step.nodes.size()) + " nodes",
           environment);
  step.node_tasks = (*counts)[static_cast<std::size_t>(step.node)];
  step.node_task = static_cast<int>(read_number(environment, "SLURM_LOCALID", 0, step.node_tasks - 1));
}

/// The number of this process's step; none: no step.
std::optional<std::int64_t> step_number(const EnvLookup& environment) {
  if (!environment("SLURM_STEP_ID")) return {};
  const auto number = read_number(environment, "SLURM_STEP_ID", 0, kLastId);
  return number < kFirstSpecialStep ? std::optional(number) : std::nullopt;
}

bool ignores_slurm(const settings::Values& values, const EnvLookup& environment) {
  for (const char* name : {"nnodes", "node-rank", "rdzv-endpoint", "master-addr", "hosts", "hostfile"})
    if (values.given(name)) return true;
  // A worker of another ddprun: the step's tasks belong to that job.
  return values.is_true("standalone") || environment(kJobIdVariable);
}

/// "4 tasks on 2 nodes"
std::string describe_tasks(const SlurmStep& step) {
  return std::to_string(step.tasks) + " tasks on " + std::to_string(step.nodes.size()) +
         (step.nodes.size() == 1 ? " node" : " nodes");
}

/// srun starts one task per worker: this ddprun starts one worker and cannot see the others on its node.
void check_task_flags(const SlurmStep& step, const settings::Values& values, const Options& options) {
  const std::string tasks = describe_tasks(step);
  const WorkersWanted& wanted = options.nproc_per_node;
  if (wanted.kind != WorkersWanted::Kind::kCount || wanted.count != 1)
    values.reject("nproc-per-node", "1, or srun --ntasks-per-node=1, because srun starts " + tasks +
                                        " (SLURM_STEP_NUM_TASKS, SLURM_STEP_NUM_NODES)");
  const std::pair<const char*, const char*> of_one_task[] = {{"virtual-local-rank", "--gpus-per-task"},
                                                             {"numa-binding", "--cpu-bind"}};
  for (const auto& [flag, sruns] : of_one_task)
    if (values.given(flag) && values.text(flag) != "false")
      throw UsageError(values.source(flag) + ": expected srun's own " + sruns +
                       ", or srun --ntasks-per-node=1, because srun starts " + tasks);
}

}  // namespace

std::vector<std::string_view> host_list_parts(std::string_view text) {
  std::vector<std::string_view> parts;
  bool inside = false;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[' || text[i] == ']') inside = text[i] == '[';
    if (text[i] != ',' || inside) continue;
    parts.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::optional<Names> expand_host_list(const std::string& text, std::size_t max_names) {
  Names names;
  for (const auto part : host_list_parts(text)) {
    auto expanded = expand_name(part, max_names);
    if (!expanded || expanded->size() > max_names - names.size()) return {};
    std::move(expanded->begin(), expanded->end(), std::back_inserter(names));
  }
  return names;
}

std::optional<std::vector<int>> expand_counts(const std::string& text, std::size_t max_numbers) {
  constexpr std::size_t kHighest = 1'000'000;
  std::vector<int> numbers;
  for (std::string_view part : host_list_parts(text)) {
    std::optional<std::size_t> times = 1;
    if (const auto open = part.find("(x"); open != std::string_view::npos) {
      if (part.back() != ')') return {};
      times = number(part.substr(open + 2, part.size() - open - 3));
      part = part.substr(0, open);
    }
    const auto value = number(part);
    if (!value || *value < 1 || *value > kHighest || !times || *times < 1 ||
        *times > max_numbers - numbers.size())
      return {};
    numbers.insert(numbers.end(), *times, static_cast<int>(*value));
  }
  return numbers;
}

void reject_variable(const std::string& name, const std::string& expected, const VariableSetter& setter,
                     const EnvLookup& environment) {
  const auto value = environment(name);
  std::vector<std::string> missing;
  for (const char* variable : setter.variables)
    if (!environment(variable)) missing.emplace_back(variable);
  constexpr std::size_t kShown = 3;
  if (missing.size() > kShown + 1) {
    const std::size_t more = missing.size() - kShown;
    missing.resize(kShown);
    missing.push_back(std::to_string(more) + " more");
  }
  throw UsageError(name + ": expected " + expected + " " + setter.where + ", got " +
                   (value ? single_quoted(*value)
                          : "no such variable; " + setter.marker + " is set, but not " +
                                one_of(missing, "and") + ", which " + setter.name +
                                " also sets; for a job on this node alone: --standalone"));
}

int derived_port(std::uint64_t number) {
  return kFirstDerivedPort + static_cast<int>(number % kDerivedPorts);
}

std::optional<SlurmStep> slurm_step(const EnvLookup& environment) {
  const auto number = step_number(environment);
  if (!number) return {};
  SlurmStep step;
  step.tasks = static_cast<int>(read_number(environment, "SLURM_STEP_NUM_TASKS", 1, kMaxTasks));
  if (step.tasks == 1) return {};
  // If they differ, the step's variables belong to another job, which submitted this one.
  if (const auto tasks = environment("SLURM_NTASKS"); tasks && *tasks != std::to_string(step.tasks))
    reject("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS=" + std::to_string(step.tasks), environment);
  const auto job = read_number(environment, "SLURM_JOB_ID", 1, kLastId);
  step.id = std::to_string(job) + "." + std::to_string(*number);
  // Neighbouring jobs get ports far apart, so that their steps do not share one.
  step.port = derived_port(static_cast<std::uint64_t>(job * 131 + *number));
  read_nodes(environment, step);
  read_node_tasks(environment, step);
  step.task = static_cast<int>(read_number(environment, "SLURM_PROCID", 0, step.tasks - 1));
  return step;
}

std::optional<SlurmStep> job_step(const settings::Values& values, const EnvLookup& environment) {
  if (ignores_slurm(values, environment)) return {};
  return slurm_step(environment);
}

void drop_excluded(SlurmStep& step, const settings::Values& values, Options& options) {
  if (!step.one_task_a_node())
    throw UsageError(values.source("exclude") + ": expected srun --ntasks-per-node=1, because srun starts " +
                     describe_tasks(step) + ": it has numbered the nodes already");
  const auto is_out = [&](const std::string& name) { return is_excluded(name, options.exclude); };
  options.excluded = is_out(step.nodes[static_cast<std::size_t>(step.node)]);
  step.node -= static_cast<int>(std::count_if(step.nodes.begin(), step.nodes.begin() + step.node, is_out));
  std::erase_if(step.nodes, is_out);
  if (step.nodes.empty()) values.reject("exclude", "at least one node of the step to remain");
  step.task = step.node;
  step.tasks = static_cast<int>(step.nodes.size());
}

void check_spares(const SlurmStep& step, const settings::Values& values, int spares) {
  if (!step.one_task_a_node())
    values.reject("spares", "0, or srun --ntasks-per-node=1, because srun starts " + describe_tasks(step));
  if (step.tasks - spares < 2)
    values.reject("spares", "at most " + std::to_string(step.tasks - 2) +
                                ", because the job needs two of the step's " + std::to_string(step.tasks) +
                                " tasks");
}

void apply_step(const SlurmStep& step, const settings::Values& values, Options& options) {
  NodesOptions& nodes = options.nodes;
  const std::string& name = step.nodes[static_cast<std::size_t>(step.node)];
  // On one node nobody connects from outside.
  nodes.endpoint = {step.nodes.size() == 1 ? "127.0.0.1" : step.nodes[0], step.port};
  if (nodes.spares > 0)  // otherwise nobody could replace a lost node
    for (std::size_t i = 1; i < std::min<std::size_t>(step.nodes.size(), kMostEndpoints); ++i)
      nodes.successors.push_back({step.nodes[i], step.port});
  const bool hosts = step.node == 0 && step.node_task == 0;
  if (nodes.is_host.value_or(hosts) != hosts)
    values.reject("rdzv-conf", std::string("is_host=") + (hosts ? "true" : "false") + " on node " + name);
  nodes.is_host = hosts;
  if (options.run_id.empty()) options.run_id = "slurm-" + step.id;
  nodes.token_is_derived = nodes.token.empty();
  if (nodes.token_is_derived) nodes.token = "slurm-" + step.id;
  if (step.one_task_a_node()) {
    if (step.node < nodes.max_nodes) nodes.node_rank = step.node;  // else a spare
    nodes.node_name = name;
    nodes.names = step.nodes;
    return;
  }
  check_task_flags(step, values, options);
  nodes.node_rank = step.task;
  nodes.node_name = name + " task " + std::to_string(step.task);
  nodes.first_local_rank = step.node_task;
  nodes.local_world_size = step.node_tasks;
  nodes.group_rank = step.node;
  nodes.group_world_size = static_cast<int>(step.nodes.size());
}

void note_idle_nodes(const settings::Values& values, const EnvLookup& environment, Options& options) {
  if (ignores_slurm(values, environment) || step_number(environment)) return;
  if (const auto nodes = parse_integer(environment("SLURM_JOB_NUM_NODES").value_or(""), 2, kMaxTasks))
    options.notes.push_back("using only one of the " + std::to_string(*nodes) +
                            " nodes that Slurm has allocated: srun --ntasks-per-node=1 ddprun uses all");
  else if (const std::string hosts = idle_hosts(environment); !hosts.empty())
    options.notes.push_back("using only " + hosts +
                            "; to use all, start one ddprun on each, and add --nnodes and --rdzv-endpoint "
                            "unless mpiexec -ppn 1 starts them");
}

}  // namespace ddprun::launcher
