#include <ddprun/common/worker_env.h>

#include <unistd.h>

#include <cstdlib>

#include <ddprun/common/errors.h>
#include <ddprun/common/text.h>

namespace ddprun {
namespace {

constexpr int kMaxWorld = 1 << 24;

constexpr std::pair<const char*, std::optional<int> WorkerEnv::*> kDescriptors[] = {
    {"DDPRUN_STORE_FD", &WorkerEnv::store_fd},   {"DDPRUN_HEARTBEAT_FD", &WorkerEnv::heartbeat_fd},
    {"DDPRUN_STATUS_FD", &WorkerEnv::status_fd}, {"DDPRUN_ROUND_FD", &WorkerEnv::round_fd},
    {"DDPRUN_STATE_FD", &WorkerEnv::state_fd},
};

/// True if a launcher set the rendezvous variables, false if none are set; throws if only some are.
bool launched(const EnvLookup& lookup) {
  std::vector<std::string> missing, present;
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    const auto value = lookup(name);
    (value && !value->empty() ? present : missing).emplace_back(name);
  }
  const auto all_are = [](const auto& names) {
    return one_of(names, "and") + (names.size() == 1 ? " is" : " are");
  };
  if (!present.empty() && !missing.empty())
    throw UsageError("environment: " + all_are(present) + " set but " + all_are(missing) +
                     " not: expected all four (a launcher sets them) or none (a single process)");
  return missing.empty();
}

}  // namespace

std::string host_name() {
  char name[256] = "";
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "unknown";
}

std::vector<std::pair<std::string, std::string>> to_env(const WorkerEnv& env) {
  std::vector<std::pair<std::string, std::string>> variables = {
      {"RANK", std::to_string(env.rank)},
      {"LOCAL_RANK", std::to_string(env.local_rank)},
      {"GROUP_RANK", std::to_string(env.group_rank)},
      {"ROLE_RANK", std::to_string(env.role_rank)},
      {"ROLE_NAME", env.role_name},
      {"LOCAL_WORLD_SIZE", std::to_string(env.local_world_size)},
      {"WORLD_SIZE", std::to_string(env.world_size)},
      {"GROUP_WORLD_SIZE", std::to_string(env.group_world_size)},
      {"ROLE_WORLD_SIZE", std::to_string(env.role_world_size)},
      {"MASTER_ADDR", env.master_addr},
      {"MASTER_PORT", std::to_string(env.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(env.restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(env.max_restarts)},
      {"TORCHELASTIC_RUN_ID", env.run_id},
      {"TORCHELASTIC_USE_AGENT_STORE", env.use_agent_store ? "True" : "False"},
      {"TORCHELASTIC_ERROR_FILE", env.error_file},
      {"DDPRUN_ROUND", std::to_string(env.round)},
  };
  if (!env.job.empty()) variables.emplace_back(kSharedJobIdVariable, env.job);
  for (const auto& [name, fd] : kDescriptors)
    if (env.*fd) variables.emplace_back(name, std::to_string(*(env.*fd)));
  return variables;
}

const std::vector<std::string>& worker_variable_names() {
  static const std::vector<std::string> names = [] {
    WorkerEnv all;
    all.job = "any";
    all.store_fd = all.heartbeat_fd = all.status_fd = all.round_fd = all.state_fd = 0;
    std::vector<std::string> list;
    for (const auto& [name, value] : to_env(all)) list.push_back(name);
    list.insert(list.end(), {"NODE_RANK", "DDPRUN_STANDBY_FD", "DDPRUN_PRELOAD_FD",
                             "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCHELASTIC_TIMER_FILE"});
    return list;
  }();
  return names;
}

std::optional<std::string> process_env(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

WorkerEnv from_env(const EnvLookup& lookup) {
  const auto text = [&](const std::string& name, const std::string& fallback) {
    return lookup(name).value_or(fallback);
  };
  const auto integer = [&](const std::string& name, int fallback, int low, int high) {
    const auto given = text(name, "");
    const auto value = given.empty() ? fallback : parse_integer(given, low, high);
    if (!value) throw UsageError(name + ": expected " + integer_from(low, high) + ", got '" + given + "'");
    return *value;
  };
  WorkerEnv env;
  env.error_file = text("TORCHELASTIC_ERROR_FILE", "");
  if (!launched(lookup)) return env;

  env.world_size = integer("WORLD_SIZE", 1, 1, kMaxWorld);
  env.rank = integer("RANK", 0, 0, env.world_size - 1);
  env.local_world_size = integer("LOCAL_WORLD_SIZE", env.world_size, 1, env.world_size);
  env.local_rank = integer("LOCAL_RANK", env.rank, 0, env.local_world_size - 1);
  env.group_world_size = integer("GROUP_WORLD_SIZE", 1, 1, env.world_size);
  env.group_rank = integer("GROUP_RANK", 0, 0, env.group_world_size - 1);
  env.role_world_size = integer("ROLE_WORLD_SIZE", env.world_size, 1, kMaxWorld);
  env.role_rank = integer("ROLE_RANK", env.rank, 0, env.role_world_size - 1);
  env.role_name = text("ROLE_NAME", env.role_name);
  env.master_addr = text("MASTER_ADDR", env.master_addr);
  env.master_port = integer("MASTER_PORT", 0, 1, 65535);
  env.restart_count = integer("TORCHELASTIC_RESTART_COUNT", 0, 0, 1 << 30);
  env.max_restarts = integer("TORCHELASTIC_MAX_RESTARTS", 0, 0, 1 << 30);
  env.run_id = text("TORCHELASTIC_RUN_ID", env.run_id);
  env.use_agent_store = text("TORCHELASTIC_USE_AGENT_STORE", "False") == "True";
  for (const auto& [name, fd] : kDescriptors)
    if (const int given = integer(name, -1, 0, 1 << 20); given >= 0) env.*fd = given;
  env.round = integer("DDPRUN_ROUND", 0, 0, 1 << 30);
  return env;
}

}  // namespace ddprun
