// The launchers of MPI programs, by the variables that their documentation names. launcher_mpi_test.cpp tries
// real ones.
#include <map>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "launcher/cli/node_options.h"
#include "launcher/cli/options.h"
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using test::ContainsSubstring;
using MpiVariables = std::map<std::string, std::string>;

Options parse_task(std::vector<std::string> flags, const MpiVariables& variables) {
  flags.push_back("prog");
  return parse_options(flags, [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

MpiVariables with(MpiVariables variables, const MpiVariables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

/// Task 1 of two, on a node of its own.
const MpiVariables kHydra = {
    {"PMI_SIZE", "2"}, {"PMI_RANK", "1"}, {"MPI_LOCALNRANKS", "1"}, {"MPI_LOCALRANKID", "0"}};
const MpiVariables kOpenMpi = {
    {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_COMM_WORLD_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
    {"PMIX_NAMESPACE", "1552285697"},
    {"OMPI_MCA_orte_hnp_uri", "1.0;tcp://10.9.0.1,10.8.0.1:56639;tcp6://[fd00::2]:5"}};
const MpiVariables kOpenMpi5 = {{"OMPI_COMM_WORLD_SIZE", "2"},
                                {"OMPI_COMM_WORLD_RANK", "1"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                {"PMIX_NAMESPACE", "prterun-gpu-node-7-4242@1"}};
const MpiVariables kPals = {{"PALS_RANKID", "1"},   {"PALS_LOCAL_RANKID", "0"}, {"PALS_LOCAL_SIZE", "1"},
                            {"PALS_APID", "f00-1"}, {"PMI_RANK", "1"},          {"PMI_SIZE", "2"},
                            {"PMI_LOCAL_RANK", "0"}};
const MpiVariables kFlux = {{"FLUX_TASK_RANK", "1"},  {"FLUX_JOB_SIZE", "2"},  {"FLUX_TASK_LOCAL_ID", "0"},
                            {"FLUX_JOB_NNODES", "2"}, {"FLUX_JOB_ID", "4277"}, {"PMI_RANK", "1"},
                            {"PMI_SIZE", "2"}};
const MpiVariables kJsrun = {{"JSM_NAMESPACE_RANK", "1"},
                             {"JSM_NAMESPACE_SIZE", "2"},
                             {"JSM_NAMESPACE_LOCAL_RANK", "0"},
                             {"JSM_NAMESPACE_LOCAL_SIZE", "1"},
                             {"OMPI_COMM_WORLD_RANK", "1"},
                             {"OMPI_COMM_WORLD_SIZE", "2"},
                             {"LSB_JOBID", "99"},
                             {"LSB_MCPU_HOSTS", "batch5 1 h41n08 42 h41n03 42"}};

TEST_CASE("a task of a launcher of MPI programs is a node of one job", "[mpi]") {
  const auto [variables, host] = GENERATE(table<MpiVariables, std::string>({
      {with(kHydra, {{"LSB_MCPU_HOSTS", "n1 4 n2 4"}}), "n1"},
      {with(kHydra, {{"SLURM_JOB_NODELIST", "n[3-4]"}, {"SLURM_JOB_ID", "7"}}), "n3"},
      {kOpenMpi, "10.9.0.1"},
      {kOpenMpi5, "gpu-node-7"},
      {with(kPals, {{"LSB_MCPU_HOSTS", "n1 4 n2 4"}}), "n1"},
      {kJsrun, "h41n08"},
  }));
  const NodesOptions nodes = parse_task({"--nproc-per-node=4"}, variables).nodes;
  CHECK(nodes.min_nodes == 2);
  CHECK(nodes.max_nodes == 2);
  CHECK(nodes.node_rank == 1);
  CHECK(nodes.is_host == false);
  CHECK(nodes.endpoint.host == host);
  CHECK(nodes.endpoint.port >= 20000);
  CHECK(nodes.endpoint.port <= 29400);
  CHECK_FALSE(nodes.group_rank);
}

TEST_CASE("the first host of a PBS job is in its file", "[mpi]") {
  const TempDir folder;
  write_file_atomic(folder.path() / "nodes", "n8\nn8\nn9\n");
  const std::string file = (folder.path() / "nodes").string();
  CHECK(parse_task({}, with(kPals, {{"PBS_NODEFILE", file}})).nodes.endpoint.host == "n8");
  CHECK_THROWS_WITH(parse_task({}, with(kPals, {{"PBS_NODEFILE", file + "2"}})),
                    ContainsSubstring("no variable says where task 0 runs: add --master-addr=HOST"));
}

TEST_CASE("where no variable names the first host, flags do", "[mpi]") {
  const MpiVariables variables = GENERATE(values({kHydra, kFlux, kPals}));
  CHECK_THROWS_WITH(
      parse_task({}, variables),
      ContainsSubstring(" starts 2 tasks on 2 nodes (") &&
          ContainsSubstring("), but no variable says where task 0 runs: add --master-addr=HOST or "
                            "--rdzv-endpoint=HOST:PORT, with the host of task 0 ("));
  const NodesOptions nodes = parse_task({"--master-addr=n1"}, variables).nodes;
  CHECK(nodes.endpoint.host == "n1");
  CHECK(nodes.node_rank == 1);
  CHECK(nodes.max_nodes == 2);
  const NodesOptions two = parse_task({"--rdzv-endpoint=n1:77,n2:78"}, variables).nodes;
  CHECK(two.endpoint == Endpoint{"n1", 77});
  CHECK(two.successors == std::vector<Endpoint>{{"n2", 78}});
}

TEST_CASE("task 0 says when it does not run where the variables say", "[mpi]") {
  CHECK_THROWS_WITH(
      parse_task({}, with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}})),
      ContainsSubstring(
          "and task 0 does not run on '10.9.0.1' (OMPI_MCA_orte_hnp_uri): add --master-addr=HOST or "
          "--rdzv-endpoint=HOST:PORT, such as --master-addr="));
}

TEST_CASE("jobs at the same time meet at different ports, and the tasks of one at one", "[mpi]") {
  const auto port = [](const MpiVariables& variables) {
    return parse_task({}, variables).nodes.endpoint.port;
  };
  const MpiVariables other = with(kOpenMpi, {{"PMIX_NAMESPACE", "1552285698"}});
  CHECK(port(kOpenMpi) != port(other));
  CHECK(parse_task({}, kOpenMpi).run_id != parse_task({}, other).run_id);
  CHECK(port(kOpenMpi) == port(with(kOpenMpi, {{"HOME", "/"}})));
  CHECK(parse_task({"--master-addr=n1"}, kHydra).nodes.endpoint.port ==
        29400);  // nothing tells its jobs apart
}

/// Task 3 of four on two nodes.
const MpiVariables kFourTasks = with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"},
                                                {"OMPI_COMM_WORLD_RANK", "3"},
                                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});

TEST_CASE("several tasks of mpirun on a node are its workers", "[mpi]") {
  const NodesOptions nodes = parse_task({}, kFourTasks).nodes;
  CHECK(nodes.max_nodes == 4);
  CHECK(nodes.node_rank == 3);
  CHECK(nodes.first_local_rank == 1);
  CHECK(nodes.local_world_size == 2);
  CHECK(nodes.group_rank == 1);
  CHECK(nodes.group_world_size == 2);
  for (const char* flag : {"--nproc-per-node=2", "--virtual-local-rank", "--numa-binding=node", "--spares=1"})
    CHECK_THROWS_WITH(
        parse_task({flag}, kFourTasks),
        ContainsSubstring("one task per node (mpirun --map-by ppr:1:node, mpiexec -ppn 1), because mpirun "
                          "(Open MPI) starts 4 tasks on 2 nodes (OMPI_COMM_WORLD_SIZE)"));
  const MpiVariables flux = with(kFlux, {{"FLUX_JOB_SIZE", "4"},
                                         {"FLUX_TASK_RANK", "3"},
                                         {"FLUX_TASK_LOCAL_ID", "1"},
                                         {"PMI_SIZE", "4"},
                                         {"PMI_RANK", "3"}});
  CHECK(parse_task({"--master-addr=n1"}, flux).nodes.local_world_size == 2);
}

TEST_CASE("all tasks on one node meet there", "[mpi]") {
  const NodesOptions nodes =
      parse_task({}, with(kHydra, {{"MPI_LOCALNRANKS", "2"}, {"MPI_LOCALRANKID", "1"}})).nodes;
  CHECK(nodes.endpoint.host == "127.0.0.1");
  CHECK(nodes.group_world_size == 1);
}

TEST_CASE("tasks that are dealt out to the nodes in turn, or not evenly, are refused", "[mpi]") {
  const auto [task, node_task, node_tasks] = GENERATE(table<const char*, const char*, const char*>(
      {{"1", "0", "2"}, {"2", "1", "2"}, {"1", "1", "3"}, {"0", "2", "3"}}));
  CHECK_THROWS_WITH(
      parse_task({}, with(kFourTasks, {{"OMPI_COMM_WORLD_RANK", task},
                                       {"OMPI_COMM_WORLD_LOCAL_RANK", node_task},
                                       {"OMPI_COMM_WORLD_LOCAL_SIZE", node_tasks}})),
      ContainsSubstring(
          "OMPI_COMM_WORLD_RANK: expected the same number of tasks on each node, numbered node by "
          "node, or one task on each; got task "));
}

TEST_CASE("a launcher's variable that is missing or makes no sense is named", "[mpi]") {
  using Names = std::vector<std::string>;
  const auto [whole, launcher, names] = GENERATE(table<MpiVariables, std::string, Names>({
      {kOpenMpi,
       "mpirun (Open MPI)",
       {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK"}},
      {kHydra, "mpiexec (MPICH, Intel MPI)", {"PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"}},
      {kPals, "mpiexec (PALS)", {"PMI_SIZE", "PALS_RANKID", "PALS_LOCAL_SIZE", "PALS_LOCAL_RANKID"}},
      {kFlux, "flux run", {"FLUX_JOB_SIZE", "FLUX_TASK_RANK", "FLUX_JOB_NNODES", "FLUX_TASK_LOCAL_ID"}},
      {kJsrun,
       "jsrun",
       {"JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_SIZE", "JSM_NAMESPACE_LOCAL_RANK"}},
  }));
  for (const std::string& name : names) {
    CAPTURE(name);
    MpiVariables variables = whole;
    variables.erase(name);
    CHECK_THROWS_WITH(parse_task({"--master-addr=n1"}, variables),
                      ContainsSubstring(name + ": expected a number from ") &&
                          ContainsSubstring(" under " + launcher + ", got no such variable; ") &&
                          ContainsSubstring(" is set, but not " + name + ", which " + launcher +
                                            " also sets; for a job on this node alone: --standalone"));
    variables[name] = "x";
    CHECK_THROWS_WITH(parse_task({"--master-addr=n1"}, variables),
                      ContainsSubstring(name + ": expected a number from ") && ContainsSubstring("got 'x'"));
  }
}

TEST_CASE("one task is a job on one node", "[mpi]") {
  const NodesOptions nodes = parse_task({"--nproc-per-node=2"}, {{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}}).nodes;
  CHECK_FALSE(nodes.several());
  CHECK(parse_task({"--nproc-per-node=2"}, {{"PMI_SIZE", "1"}}).notes.empty());
}

TEST_CASE(
    "a ddprun that a batch job of PBS or LSF, or PMIx, starts without a launcher says what it leaves out",
    "[mpi]") {
  const TempDir folder;
  write_file_atomic(folder.path() / "two", "n8\nn8\nn9\n");
  write_file_atomic(folder.path() / "one", "n8\nn8\n");
  const auto file = [&](const char* name) { return (folder.path() / name).string(); };
  const auto notes = [](const MpiVariables& variables, std::vector<std::string> flags = {}) {
    return parse_task(std::move(flags), variables).notes;
  };
  const auto [variables, text] = GENERATE_COPY(table<MpiVariables, std::string>({
      {{{"PBS_NODEFILE", file("two")}, {"PBS_NODENUM", "0"}},
       "one of the 2 hosts that PBS has allocated (PBS_NODEFILE)"},
      {{{"PBS_NODEFILE", file("not here")}, {"PBS_NODENUM", "1"}},
       "host 1 of those that PBS has allocated (PBS_NODENUM)"},
      {{{"LSB_JOBID", "7"}, {"LSB_MCPU_HOSTS", "n1 4 n2 4 n3 1"}},
       "one of the 3 hosts that LSF has allocated (LSB_MCPU_HOSTS)"},
      {{{"PMIX_NAMESPACE", "prterun-n1-7@1"}, {"PMIX_RANK", "1"}},
       "task 1 (PMIX_RANK), because no variable says how many tasks there are"},
  }));
  CHECK(
      notes(variables) ==
      std::vector<std::string>{"using only " + text +
                               "; to use all, start one ddprun on each, and add --nnodes and --rdzv-endpoint "
                               "unless mpiexec -ppn 1 starts them"});
  CHECK(notes(variables, {"--standalone"}).empty());
  CHECK(notes(variables, {"--nnodes=1"}).empty());
  CHECK(notes(with(variables, {{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}})).empty());  // mpiexec -n 1
  CHECK(notes(with(variables, {{"DDPRUN_JOB_ID", "outer"}})).empty());
  CHECK(notes({{"PBS_NODEFILE", file("one")}, {"PBS_NODENUM", "0"}, {"LSB_MCPU_HOSTS", "n1 4"}}).empty());
}

TEST_CASE("flags that say what nodes there are set a launcher's variables aside, as does a worker", "[mpi]") {
  CHECK_FALSE(parse_task({"--standalone"}, kFourTasks).nodes.several());
  CHECK_FALSE(parse_task({"--nnodes=1"}, kFourTasks).nodes.several());
  CHECK_FALSE(parse_task({"--node-rank=0"}, kFourTasks).nodes.several());
  CHECK_FALSE(parse_task({}, with(kFourTasks, {{"DDPRUN_JOB_ID", "outer"}})).nodes.several());
  const NodesOptions nodes = parse_task({"--nnodes=3", "--rdzv-endpoint=a:1"}, kFourTasks).nodes;
  CHECK(nodes.max_nodes == 3);
  CHECK_FALSE(nodes.node_rank);
}

TEST_CASE("with one task a node the last ones may stand by", "[mpi]") {
  const MpiVariables third = with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "3"}, {"OMPI_COMM_WORLD_RANK", "2"}});
  const NodesOptions nodes = parse_task({"--spares=1", "--recover=rank"}, third).nodes;
  CHECK(nodes.max_nodes == 2);
  CHECK_FALSE(nodes.node_rank);
  CHECK_THROWS_WITH(parse_task({"--spares=1"}, kOpenMpi),
                    ContainsSubstring("--spares: expected at most 0 of 2 tasks (OMPI_COMM_WORLD_SIZE)"));
}

TEST_CASE("srun's variables count where srun also sets an MPI launcher's, and two that differ are refused",
          "[mpi]") {
  const MpiVariables step = {{"SLURM_JOB_ID", "6"},
                             {"SLURM_STEP_ID", "3"},
                             {"SLURM_STEP_NUM_TASKS", "2"},
                             {"SLURM_STEP_NUM_NODES", "2"},
                             {"SLURM_STEP_NODELIST", "n[1-2]"},
                             {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                             {"SLURM_NODEID", "1"},
                             {"SLURM_LOCALID", "0"},
                             {"SLURM_PROCID", "1"},
                             {"SLURMD_NODENAME", "n2"}};
  const Options options = parse_task({}, with(step, {{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}}));
  CHECK(options.run_id == "slurm-6.3");
  CHECK_THROWS_WITH(parse_task({}, with(step, {{"PMI_SIZE", "3"}, {"PMI_RANK", "1"}})),
                    ContainsSubstring("SLURM_STEP_NUM_TASKS: contradicts PMI_SIZE"));
  CHECK_THROWS_WITH(parse_task({}, with(kOpenMpi, {{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}})),
                    ContainsSubstring("PMI_SIZE: contradicts OMPI_COMM_WORLD_SIZE"));
}

}  // namespace
}  // namespace ddprun::launcher
