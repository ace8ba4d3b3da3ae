#include <ddprun/common/worker_env.h>

#include <algorithm>
#include <map>

#include <ddprun/common/errors.h>
#include "tests/support/catch.h"

namespace ddprun {
namespace {

using test::ContainsSubstring;
using Variables = std::map<std::string, std::string>;

EnvLookup lookup_in(const Variables& variables) {
  return [&variables](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
}

WorkerEnv read(const Variables& variables) { return from_env(lookup_in(variables)); }

const Variables kMinimal = {
    {"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};

Variables minimal_with(const std::string& name, const std::string& value) {
  Variables variables = kMinimal;
  variables[name] = value;
  return variables;
}

TEST_CASE("what a launcher sets a worker reads", "[worker_env]") {
  WorkerEnv env;
  env.rank = env.role_rank = 5;
  env.local_rank = 1;
  env.group_rank = 2;
  env.world_size = env.role_world_size = 8;
  env.local_world_size = 2;
  env.group_world_size = 4;
  env.role_name = "trainer";
  env.master_port = 1234;
  env.restart_count = 1;
  env.max_restarts = 3;
  env.run_id = "id";
  env.use_agent_store = true;
  env.error_file = "/tmp/x/error.json";
  env.store_fd = 7;
  env.heartbeat_fd = 8;
  env.status_fd = 9;
  const auto variables = to_env(env);
  const WorkerEnv back = read(Variables(variables.begin(), variables.end()));
  CHECK(to_env(back) == variables);
  CHECK(back.store_fd == 7);
  CHECK(back.heartbeat_fd == 8);
  CHECK(back.status_fd == 9);
}

TEST_CASE("a descriptor's variable is set only for the rank that has it", "[worker_env]") {
  for (const auto& [name, value] : to_env(WorkerEnv())) CHECK(name.find("_FD") == std::string::npos);
}

TEST_CASE("all variables that a launcher may set are known as such", "[worker_env]") {
  const auto& names = worker_variable_names();
  for (const char* name : {"RANK", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
                           "DDPRUN_STORE_FD", "DDPRUN_HEARTBEAT_FD", "NODE_RANK"})
    CHECK(std::count(names.begin(), names.end(), name) == 1);
}

TEST_CASE("a program started by hand is a single process", "[worker_env]") {
  const WorkerEnv env = read({});
  CHECK(env.world_size == 1);
  CHECK(env.rank == 0);
  CHECK(env.master_port == 0);
}

TEST_CASE("the four variables of any launcher suffice", "[worker_env]") {
  const WorkerEnv env = read(kMinimal);
  CHECK(env.rank == 2);
  CHECK(env.local_rank == 2);
  CHECK(env.local_world_size == 4);
  CHECK(env.master_addr == "10.0.0.1");
  CHECK_FALSE(env.use_agent_store);
}

TEST_CASE("some of the four variables without the others is an error that names all missing ones",
          "[worker_env]") {
  CHECK_THROWS_WITH(
      read({{"RANK", "0"}, {"MASTER_ADDR", "x"}}),
      "environment: RANK and MASTER_ADDR are set but WORLD_SIZE and MASTER_PORT are not: expected all "
      "four (a launcher sets them) or none (a single process)");
}

TEST_CASE("a variable out of its range is an error that names it", "[worker_env]") {
  for (const auto& [name, value] : Variables{{"RANK", "4"},
                                             {"WORLD_SIZE", "0"},
                                             {"MASTER_PORT", "65536"},
                                             {"LOCAL_RANK", "-1"},
                                             {"GROUP_RANK", "x"},
                                             {"DDPRUN_STORE_FD", "3x"},
                                             {"DDPRUN_HEARTBEAT_FD", "-1"}})
    CHECK_THROWS_WITH(read(minimal_with(name, value)),
                      ContainsSubstring(name) && ContainsSubstring("'" + value + "'"));
}

}  // namespace
}  // namespace ddprun
