#include "launcher/cli/node_options.h"

#include <map>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "launcher/cli/options.h"
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using test::ContainsSubstring;
using Variables = std::map<std::string, std::string>;
using Words = std::vector<std::string>;

EnvLookup lookup(const Variables& variables) {
  return [&variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

/// The variables below are those that Slurm 22.05 sets, of which SLURM_NODELIST is the job's.
Variables batch_script() {
  return {{"SLURM_JOB_ID", "6"},        {"SLURM_JOB_NUM_NODES", "2"}, {"SLURM_NNODES", "2"},
          {"SLURM_NODELIST", "n[1-2]"}, {"SLURM_NODEID", "0"},        {"SLURM_PROCID", "0"},
          {"SLURM_LOCALID", "0"},       {"SLURM_NTASKS", "2"},        {"SLURM_TASKS_PER_NODE", "1(x2)"},
          {"SLURMD_NODENAME", "n1"},    {"SLURM_GTIDS", "0"}};
}

/// On node i of two: srun -N2
Variables one_task(int i) {
  Variables variables = batch_script();
  variables.insert({{"SLURM_STEP_ID", "3"},
                    {"SLURM_STEP_NUM_NODES", "2"},
                    {"SLURM_STEP_NUM_TASKS", "2"},
                    {"SLURM_STEP_NODELIST", "n[1-2]"},
                    {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}});
  variables["SLURM_PROCID"] = variables["SLURM_NODEID"] = std::to_string(i);
  variables["SLURMD_NODENAME"] = "n" + std::to_string(i + 1);
  return variables;
}

/// The last task of three on the nodes n4 and n5: srun -N2 -n3
Variables third_task() {
  Variables variables = one_task(1);
  for (const auto& [name, value] : Variables{{"SLURM_STEP_NUM_TASKS", "3"},
                                             {"SLURM_NTASKS", "3"},
                                             {"SLURM_STEP_TASKS_PER_NODE", "1,2"},
                                             {"SLURM_STEP_NODELIST", "n[4-5]"},
                                             {"SLURMD_NODENAME", "n5"},
                                             {"SLURM_PROCID", "2"},
                                             {"SLURM_LOCALID", "1"}})
    variables[name] = value;
  return variables;
}

Options parse_steps(Words flags, const Variables& variables) {
  flags.push_back("prog");
  return parse_options(flags, lookup(variables));
}

TEST_CASE("a task of a step knows its place", "[slurm]") {
  const Variables variables = third_task();
  const auto step = slurm_step(lookup(variables));
  REQUIRE(step);
  CHECK(step->id == "6.3");
  CHECK(step->nodes == Words{"n4", "n5"});
  CHECK(step->node == 1);
  CHECK(step->tasks == 3);
  CHECK(step->task == 2);
  CHECK(step->node_tasks == 2);
  CHECK(step->node_task == 1);
  CHECK_FALSE(step->one_task_a_node());
}

TEST_CASE("a step of one task, a batch script and a shell are not a step of several tasks", "[slurm]") {
  CHECK_FALSE(slurm_step(lookup({})));
  CHECK_FALSE(slurm_step(lookup(batch_script())));
  Variables single = one_task(0);
  single["SLURM_STEP_NUM_TASKS"] = single["SLURM_STEP_NUM_NODES"] = single["SLURM_NTASKS"] = "1";
  CHECK_FALSE(slurm_step(lookup(single)));
  Variables shell = batch_script();
  shell["SLURM_STEP_ID"] = "4294967290";  // of salloc
  CHECK_FALSE(slurm_step(lookup(shell)));
}

TEST_CASE("the port follows from job and step, below the kernel's own", "[slurm]") {
  const auto port = [](const std::string& job, const std::string& step) {
    Variables variables = one_task(0);
    variables["SLURM_JOB_ID"] = job;
    variables["SLURM_STEP_ID"] = step;
    return slurm_step(lookup(variables))->port;
  };
  CHECK(port("6", "3") == port("6", "3"));
  CHECK(port("1", "0") == 20131);
  CHECK(port("1", "1") == 20132);
  for (const char* job : {"1", "2", "68", "69", "123456", "4294967294"})
    for (const char* step : {"0", "1", "130", "4294967279"}) {
      CHECK(port(job, step) >= 20000);
      CHECK(port(job, step) < 29000);
    }
}

TEST_CASE("a variable of a step that is missing is named", "[slurm]") {
  const std::string name = GENERATE(values<std::string>(
      {"SLURM_JOB_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST",
       "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURMD_NODENAME"}));
  Variables variables = third_task();
  variables.erase(name);
  CHECK_THROWS_AS(slurm_step(lookup(variables)), UsageError);
  CHECK_THROWS_WITH(
      slurm_step(lookup(variables)),
      ContainsSubstring(name + ": expected ") &&
          ContainsSubstring(" in a Slurm job step, got no such variable; SLURM_STEP_ID is set, but not " +
                            name + ", which srun also sets"));
  CHECK_THROWS_AS(parse_steps({}, variables), UsageError);
}

TEST_CASE("etcd needs an endpoint in a step, too", "[slurm]") {
  CHECK_THROWS_WITH(
      parse_steps({"--rdzv-backend=etcd"}, one_task(0)),
      ContainsSubstring("--rdzv-backend: expected etcd's address as well (--rdzv-endpoint=HOST[:PORT])"));
}

TEST_CASE("of many variables of a step that are missing three are named", "[slurm]") {
  CHECK_THROWS_WITH(
      slurm_step(lookup({{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}})),
      ContainsSubstring("is set, but not SLURM_JOB_ID, SLURM_STEP_NUM_NODES, SLURM_STEP_NODELIST and 5 more, "
                        "which srun also sets; for a job on this node alone: --standalone"));
}

TEST_CASE("a variable of a step that makes no sense is named", "[slurm]") {
  const auto [name, value, expected] = GENERATE(table<std::string, std::string, std::string>({
      {"SLURM_JOB_ID", "x", "a number from 1 to 4294967294"},
      {"SLURM_JOB_ID", "0", "a number from 1"},
      {"SLURM_STEP_ID", "", "a number from 0 to 4294967294"},
      {"SLURM_STEP_ID", "4294967295", "a number from 0 to 4294967294"},
      {"SLURM_STEP_NUM_TASKS", "0", "a number from 1 to 100000"},
      {"SLURM_STEP_NUM_TASKS", "100001", "a number from 1 to 100000"},
      {"SLURM_STEP_NUM_NODES", "4", "a number from 1 to 3"},
      {"SLURM_STEP_NODELIST", "n[1-", "a host list such as n[1-3,7]"},
      {"SLURM_STEP_NODELIST", "", "a host list"},
      {"SLURM_STEP_NODELIST", "n[4-6]", "as many names as SLURM_STEP_NUM_NODES=2"},
      {"SLURM_STEP_TASKS_PER_NODE", "1,", "numbers of tasks such as 2(x3),1"},
      {"SLURM_STEP_TASKS_PER_NODE", "2(x2)", "3 tasks on 2 nodes"},
      {"SLURM_STEP_TASKS_PER_NODE", "3", "3 tasks on 2 nodes"},
      {"SLURM_NODEID", "2", "a number from 0 to 1"},
      {"SLURM_NODEID", "-1", "a number from 0 to 1"},
      {"SLURM_PROCID", "3", "a number from 0 to 2"},
      {"SLURM_LOCALID", "2", "a number from 0 to 1"},
      {"SLURM_NODEID", "0x1", "a number from 0 to 1"},
  }));
  Variables variables = third_task();
  variables[name] = value;
  CHECK_THROWS_WITH(slurm_step(lookup(variables)), ContainsSubstring(name + ": expected " + expected) &&
                                                       ContainsSubstring("got '" + value + "'"));
}

TEST_CASE("a list of nodes in an order other than their numbers is not relied on", "[slurm]") {
  Variables variables = one_task(0);
  variables["SLURMD_NODENAME"] = "n2";
  CHECK_THROWS_WITH(slurm_step(lookup(variables)),
                    ContainsSubstring("SLURMD_NODENAME: expected 'n1', node 0 of SLURM_STEP_NODELIST, in a"));
}

TEST_CASE("variables of the step from which a job was submitted are not taken for its own", "[slurm]") {
  Variables variables = one_task(0);
  variables["SLURM_NTASKS"] = "5";
  CHECK_THROWS_WITH(
      slurm_step(lookup(variables)),
      ContainsSubstring("SLURM_NTASKS: expected SLURM_STEP_NUM_TASKS=2 in a Slurm job step, got '5'"));
}

TEST_CASE("with one task a node each is a node of the job", "[slurm]") {
  const int node = GENERATE(0, 1);
  const Options options = parse_steps({"--nproc-per-node=4"}, one_task(node));
  const NodesOptions& nodes = options.nodes;
  CHECK(nodes.min_nodes == 2);
  CHECK(nodes.max_nodes == 2);
  CHECK(nodes.endpoint == Endpoint{"n1", 20000 + 6 * 131 + 3});
  CHECK(nodes.is_host == (node == 0));
  CHECK(nodes.node_rank == node);
  CHECK(nodes.node_name == (node == 0 ? "n1" : "n2"));
  CHECK(nodes.names == Words{"n1", "n2"});
  CHECK(nodes.first_local_rank == 0);
  CHECK_FALSE(nodes.local_world_size);
  CHECK_FALSE(nodes.group_rank);
  CHECK(nodes.token == "slurm-6.3");
  CHECK(nodes.token_is_derived);
  CHECK(options.run_id == "slurm-6.3");
  CHECK(options.nproc_per_node.count == 4);
  CHECK_FALSE(options.master_port);
  CHECK(options.notes.empty());
}

TEST_CASE("with spares the step's next nodes may take the coordinator's place", "[slurm]") {
  auto three = one_task(0);
  for (const auto& [name, value] : Variables{{"SLURM_STEP_NUM_NODES", "3"},
                                             {"SLURM_STEP_NUM_TASKS", "3"},
                                             {"SLURM_NTASKS", "3"},
                                             {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"},
                                             {"SLURM_STEP_NODELIST", "n[1-3]"}})
    three[name] = value;
  CHECK(parse_steps({}, three).nodes.successors.empty());
  const auto nodes = parse_steps({"--spares=1", "--recover=rank"}, three).nodes;
  CHECK(nodes.min_nodes == 2);
  CHECK(nodes.max_nodes == 2);
  CHECK(nodes.node_rank == 0);
  three["SLURM_NODEID"] = three["SLURM_PROCID"] = "2";
  three["SLURMD_NODENAME"] = "n3";
  CHECK_FALSE(parse_steps({"--spares=1"}, three).nodes.node_rank);
  CHECK(parse_steps({}, three).nodes.node_rank == 2);
  for (const char* flag : {"--spares=1", "--spares=2"})
    CHECK_THROWS_WITH(
        parse_steps({flag}, third_task()),
        ContainsSubstring("--spares: expected 0, or srun --ntasks-per-node=1, because srun starts "
                          "3 tasks on 2 nodes"));
  const int port = 20000 + 6 * 131 + 3;
  CHECK(nodes.successors == std::vector<Endpoint>{{"n2", port}, {"n3", port}});
  CHECK_THROWS_WITH(
      parse_steps({"--spares=2"}, three),
      ContainsSubstring("--spares: expected at most 1, because the job needs two of the step's 3 tasks"));
}

TEST_CASE("with several tasks a node each is a worker", "[slurm]") {
  const Options options = parse_steps({}, third_task());
  const NodesOptions& nodes = options.nodes;
  CHECK(nodes.min_nodes == 3);
  CHECK(nodes.max_nodes == 3);
  CHECK(nodes.endpoint.host == "n4");
  CHECK(nodes.is_host == false);
  CHECK(nodes.node_rank == 2);
  CHECK(nodes.node_name == "n5 task 2");
  CHECK(nodes.names.empty());
  CHECK(nodes.first_local_rank == 1);
  CHECK(nodes.local_world_size == 2);
  CHECK(nodes.group_rank == 1);
  CHECK(nodes.group_world_size == 2);
}

TEST_CASE("of several tasks the first one of the first node is the host, whatever its number", "[slurm]") {
  Variables variables = third_task();  // srun -m arbitrary may number so
  variables["SLURM_NODEID"] = variables["SLURM_LOCALID"] = "0";
  variables["SLURMD_NODENAME"] = "n4";
  CHECK(parse_steps({}, variables).nodes.is_host == true);
  CHECK(parse_steps({}, variables).nodes.node_rank == 2);
}

TEST_CASE("several tasks of one node meet there", "[slurm]") {
  Variables variables = third_task();
  for (const auto& [name, value] : Variables{{"SLURM_STEP_NUM_NODES", "1"},
                                             {"SLURM_STEP_TASKS_PER_NODE", "3"},
                                             {"SLURM_STEP_NODELIST", "n5"},
                                             {"SLURM_NODEID", "0"},
                                             {"SLURM_LOCALID", "2"}})
    variables[name] = value;
  const NodesOptions nodes = parse_steps({}, variables).nodes;
  CHECK(nodes.max_nodes == 3);
  CHECK(nodes.endpoint.host == "127.0.0.1");
  CHECK(nodes.local_world_size == 3);
  CHECK(nodes.group_world_size == 1);
}

TEST_CASE("several tasks a node leave the number of workers and their devices to srun", "[slurm]") {
  const auto [flag, expected] = GENERATE(table<std::string, std::string>({
      {"--nproc-per-node=2",
       "--nproc-per-node: expected 1, or srun --ntasks-per-node=1, because srun starts 3 tasks"},
      {"--nproc-per-node=gpu", "on 2 nodes (SLURM_STEP_NUM_TASKS, SLURM_STEP_NUM_NODES), got 'gpu'"},
      {"--virtual-local-rank", "--virtual-local-rank: expected srun's own --gpus-per-task"},
      {"--numa-binding=node", "--numa-binding: expected srun's own --cpu-bind"},
  }));
  CHECK_THROWS_WITH(parse_steps({flag}, third_task()), ContainsSubstring(expected));
  CHECK_NOTHROW(parse_steps({flag}, one_task(0)));
  CHECK_NOTHROW(parse_steps({"--nproc-per-node=1", "--virtual-local-rank=false"}, third_task()));
}

TEST_CASE("flags add to what Slurm says", "[slurm]") {
  Variables variables = one_task(1);
  variables["DDPRUN_TOKEN"] = "secret";
  const Options options =
      parse_steps({"--rdzv-id=run", "--rdzv-backend=c10d", "--master-port=7", "--node-timeout=3",
                   "--rdzv-conf=join_timeout=5", "--local-addr=10.0.0.2"},
                  variables);
  CHECK(options.nodes.endpoint.host == "n1");
  CHECK(options.run_id == "run");
  CHECK(options.master_port == 7);
  CHECK(options.nodes.node_timeout == std::chrono::seconds(3));
  CHECK(options.nodes.join_timeout == std::chrono::seconds(5));
  CHECK(options.nodes.local_addr == "10.0.0.2");
  CHECK(options.nodes.token == "secret");
  CHECK_FALSE(options.nodes.token_is_derived);
  CHECK_THROWS_WITH(parse_steps({"--rdzv-conf=is_host=1"}, variables),
                    ContainsSubstring("is_host=false on node n2"));
}

TEST_CASE("flags that say what nodes there are set Slurm's variables aside", "[slurm]") {
  Variables variables = one_task(1);
  variables["SLURM_STEP_NODELIST"] = "broken[";
  CHECK_FALSE(parse_steps({"--standalone"}, variables).nodes.several());
  CHECK_FALSE(parse_steps({"--nnodes=1"}, variables).nodes.several());
  CHECK_FALSE(parse_steps({"--node-rank=0"}, variables).nodes.several());
  CHECK_FALSE(parse_steps({"--master-addr=localhost"}, variables).nodes.several());
  CHECK_FALSE(parse_steps({"--rdzv-endpoint=localhost"}, variables).nodes.several());
  const NodesOptions nodes = parse_steps({"--nnodes=3", "--rdzv-endpoint=a:1"}, variables).nodes;
  CHECK(nodes.max_nodes == 3);
  CHECK(nodes.endpoint == Endpoint{"a", 1});
  CHECK_FALSE(nodes.node_rank);
  CHECK(nodes.token.empty());
}

TEST_CASE("a ddprun that a worker starts is not a task of the step", "[slurm]") {
  Variables variables = one_task(1);
  variables["DDPRUN_JOB_ID"] = "outer";
  const Options options = parse_steps({}, variables);
  CHECK_FALSE(options.nodes.several());
  CHECK(options.notes.empty());
}

TEST_CASE("a batch script of several nodes is told that it uses one", "[slurm]") {
  const Options options = parse_steps({}, batch_script());
  CHECK_FALSE(options.nodes.several());
  REQUIRE(options.notes.size() == 1);
  CHECK(options.notes[0] ==
        "using only one of the 2 nodes that Slurm has allocated: srun --ntasks-per-node=1 ddprun "
        "uses all");
  CHECK(parse_steps({"--standalone"}, batch_script()).notes.empty());
  CHECK(parse_steps({"--nnodes=1"}, batch_script()).notes.empty());
  Variables one_node = batch_script();
  one_node["SLURM_JOB_NUM_NODES"] = "1";
  CHECK(parse_steps({}, one_node).notes.empty());
  Variables shell = batch_script();
  shell["SLURM_STEP_ID"] = "4294967290";  // of salloc
  CHECK(parse_steps({}, shell).notes.size() == 1);
  Variables step = one_task(0);  // srun -N1 -n1: on purpose
  step["SLURM_STEP_NUM_TASKS"] = step["SLURM_STEP_NUM_NODES"] = step["SLURM_NTASKS"] = "1";
  CHECK(parse_steps({}, step).notes.empty());
}

}  // namespace
}  // namespace ddprun::launcher
