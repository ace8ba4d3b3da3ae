#include "launcher/plan/launch_plan.h"

#include <algorithm>
#include <cerrno>
#include <csignal>

#include <ddprun/common/errors.h>
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using Kind = WorkersWanted::Kind;

bool has(const WorkerSpec& spec, const std::string& variable) {
  return std::count(spec.env.begin(), spec.env.end(), variable) == 1;
}

bool sets(const WorkerSpec& spec, const std::string& name) {
  return std::any_of(spec.env.begin(), spec.env.end(),
                     [&](const std::string& variable) { return variable.rfind(name + "=", 0) == 0; });
}

/// A job whose program is `train`.
struct PlannedJob {
  Options options;
  std::vector<std::string> environment;
  JobPlan plan{options, environment, {"/bin/train", {"train", "--lr", "\xff"}}, {8, 0}, {}, "job"};

  explicit PlannedJob(std::vector<std::string> inherited) : environment(std::move(inherited)) {}
  std::vector<WorkerSpec> workers(const Round& round) const {
    std::vector<std::filesystem::path> error_files;
    for (int i = 0; i < 16; ++i) error_files.push_back("/tmp/errors/" + std::to_string(i));
    return plan_workers(plan, round, error_files, 9);
  }
};

std::vector<WorkerSpec> plan(int workers, std::vector<std::string> environment, int cpus = 8) {
  PlannedJob job(std::move(environment));
  job.plan.topology.cpus = cpus;
  return job.workers(static_round(0, workers, "", 12345, "the-run"));
}

TEST_CASE("the number of workers is the number asked for, or counted", "[launch_plan]") {
  CHECK(worker_count({Kind::kCount, 3}, {8, 2}) == 3);
  CHECK(worker_count({Kind::kCpu, 0}, {8, 2}) == 8);
  CHECK(worker_count({Kind::kGpu, 0}, {8, 2}) == 2);
  CHECK(worker_count({Kind::kXpu, 0}, {8, 2}) == 2);
  CHECK(worker_count({Kind::kAuto, 0}, {8, 2}) == 2);
  CHECK(worker_count({Kind::kAuto, 0}, {8, 0}) == 8);
  CHECK_THROWS_AS(worker_count({Kind::kGpu, 0}, {8, 0}), UsageError);
  CHECK_THROWS_AS(worker_count({Kind::kXpu, 0}, {8, 0}), UsageError);
}

TEST_CASE("with --virtual-local-rank each worker is told of its GPU as the vendor's runtime wants it",
          "[launch_plan]") {
  PlannedJob job({"HIP_VISIBLE_DEVICES=0,1", "ROCR_VISIBLE_DEVICES=2,3"});
  job.plan.placement.visible_gpus = {"2", "3"};
  job.plan.topology.gpu_variable = "ROCR_VISIBLE_DEVICES";
  const auto specs = job.workers(static_round(0, 2, "", 12345, "run"));
  CHECK(has(specs[1], "ROCR_VISIBLE_DEVICES=3"));
  CHECK_FALSE(has(specs[1], "ROCR_VISIBLE_DEVICES=2,3"));
  CHECK_FALSE(sets(specs[1], "HIP_VISIBLE_DEVICES"));
  CHECK_FALSE(sets(specs[1], "CUDA_VISIBLE_DEVICES"));
  CHECK(has(specs[1], "LOCAL_RANK=0"));
}

TEST_CASE("workers know the signals that end the job, and the pipe of file timers", "[launch_plan]") {
  PlannedJob job({"TORCHELASTIC_TIMER_FILE=/outer"});
  job.options.ending_signals = {SIGTERM, SIGINT};
  const Round round = static_round(0, 1, "", 12345, "the-run");
  CHECK(has(job.workers(round)[0], "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT"));
  CHECK_FALSE(sets(job.workers(round)[0], "TORCHELASTIC_TIMER_FILE"));
  job.plan.timer_file = "/run/timers";
  CHECK(has(job.workers(round)[0], "TORCHELASTIC_TIMER_FILE=/run/timers"));
}

TEST_CASE("every worker runs the program with its own rank", "[launch_plan]") {
  const auto specs = plan(3, {});
  REQUIRE(specs.size() == 3);
  for (int rank = 0; rank < 3; ++rank) {
    const WorkerSpec& spec = specs[static_cast<std::size_t>(rank)];
    CHECK(spec.argv == std::vector<std::string>{"train", "--lr", "\xff"});
    CHECK(has(spec, "RANK=" + std::to_string(rank)));
    CHECK(has(spec, "LOCAL_RANK=" + std::to_string(rank)));
    CHECK(has(spec, "WORLD_SIZE=3"));
    CHECK(has(spec, "MASTER_ADDR=127.0.0.1"));
    CHECK(has(spec, "MASTER_PORT=12345"));
    CHECK(has(spec, "TORCHELASTIC_RUN_ID=the-run"));
    CHECK(has(spec, "TORCHELASTIC_USE_AGENT_STORE=False"));
    CHECK(has(spec, "TORCHELASTIC_ERROR_FILE=" + spec.error_file.string()));
  }
  CHECK(specs[0].error_file != specs[1].error_file);
}

TEST_CASE("only rank 0 reads stdin and gets the socket", "[launch_plan]") {
  const auto specs = plan(2, {});
  CHECK(specs[0].reads_stdin);
  CHECK(specs[0].inherited_fds == std::vector<int>{9});
  CHECK(has(specs[0], "DDPRUN_STORE_FD=9"));
  CHECK_FALSE(specs[1].reads_stdin);
  CHECK(specs[1].inherited_fds.empty());
  CHECK_FALSE(sets(specs[1], "DDPRUN_STORE_FD"));
}

TEST_CASE("the token of the nodes reaches no worker", "[launch_plan]") {
  const auto specs = plan(1, {"A=1", "DDPRUN_TOKEN=secret", "DDPRUN_TOKEN_FILE=f"});
  CHECK_FALSE(sets(specs[0], "DDPRUN_TOKEN"));
  CHECK(has(specs[0], "A=1"));
  CHECK(has(specs[0], "DDPRUN_TOKEN_FILE=f"));
}

TEST_CASE("workers are told how ddprun was called, without the program and without secrets",
          "[launch_plan]") {
  PlannedJob job({"DDPRUN_COMMAND=outer"});
  job.options.hosts.words = {
      "--nproc-per-node=2", "--run-path", "a b", "--rdzv-conf=token=V", "train", "--lr", "1"};
  job.options.program = {"train", "--lr", "1"};
  const std::string own = ::program_invocation_name;
  const Round round = static_round(0, 1, "", 12345, "the-run");
  const auto told = [&] { return own_command(job.options, {"A=1", "DDPRUN_COMMAND=outer"}); };
  CHECK(told() == own + " --nproc-per-node=2 --run-path 'a b' --rdzv-conf=token=***");
  CHECK(has(job.workers(round)[0], "DDPRUN_COMMAND=" + told()));
  CHECK_FALSE(has(job.workers(round)[0], "DDPRUN_COMMAND=outer"));
  job.options.hosts.words = {"--tee=3", "--", "train", "--lr", "1"};
  CHECK(told() == own + " --tee=3");
  job.options.hosts.words = {"--config", "job.toml"};  // which names the program
  CHECK(told() == own + " --config job.toml");
  CHECK(own_command(job.options, {"DDPRUN_NPROC_PER_NODE=2", "DDPRUN_RUN_PATH=1", "PET_RDZV_CONF=token=V",
                                  "DDPRUN_LOG_DIR=a b", "DDPRUN_TOKEN=V"}) ==
        "DDPRUN_NPROC_PER_NODE=2 DDPRUN_RUN_PATH=1 PET_RDZV_CONF=token=*** DDPRUN_LOG_DIR='a b' " + told());
  job.options.hosts.words = {"--log-dir=" + std::string(100'000, 'x'), "train", "--lr", "1"};
  CHECK_FALSE(sets(job.workers(round)[0], "DDPRUN_COMMAND"));  // it would leave no room for other variables
  job.options.hosts.words = {"train"};
  job.options.nodes.local_world_size = 2;  // of two ddpruns here, as under srun
  CHECK_FALSE(sets(job.workers(round)[0], "DDPRUN_COMMAND"));
}

TEST_CASE("on a later node ranks go on and nobody gets the socket", "[launch_plan]") {
  Round round = static_round(0, 2, "", 12345, "the-run");
  round.group_rank = 1;
  round.group_world_size = 2;
  round.first_rank = 2;
  round.world_size = 4;
  const auto specs = PlannedJob({}).workers(round);
  CHECK(has(specs[0], "RANK=2"));
  CHECK(has(specs[0], "LOCAL_RANK=0"));
  CHECK(has(specs[0], "GROUP_RANK=1"));
  CHECK(has(specs[0], "WORLD_SIZE=4"));
  CHECK(has(specs[0], "LOCAL_WORLD_SIZE=2"));
  CHECK(specs[0].inherited_fds.empty());
}

TEST_CASE("where a node has several ddpruns each has its part of the local ranks", "[launch_plan]") {
  Round round = static_round(4, 1, "", 12345, "the-run");
  round.first_rank = 5;
  round.first_local_rank = 1;
  round.local_world_size = 4;
  round.world_size = 8;
  round.first_role_rank = 2;
  round.role_world_size = 6;
  round.restart_count = 3;
  const auto specs = PlannedJob({}).workers(round);
  REQUIRE(specs.size() == 1);
  for (const char* variable : {"RANK=5", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4", "WORLD_SIZE=8", "ROLE_RANK=2",
                               "ROLE_WORLD_SIZE=6", "TORCHELASTIC_RESTART_COUNT=3"})
    CHECK(has(specs[0], variable));
}

TEST_CASE("the environment is inherited without another launcher's variables", "[launch_plan]") {
  const auto specs = plan(1, {"PATH=/bin", "RANK=77", "RANKING=1", "TORCHELASTIC_USE_AGENT_STORE=True",
                              "DDPRUN_STORE_FD=3", "ODD", "EMPTY=", "BYTES=\xff"});
  for (const char* kept : {"PATH=/bin", "RANKING=1", "ODD", "EMPTY=", "BYTES=\xff", "RANK=0"})
    CHECK(has(specs[0], kept));
  for (const char* stale : {"RANK=77", "TORCHELASTIC_USE_AGENT_STORE=True", "DDPRUN_STORE_FD=3"})
    CHECK_FALSE(has(specs[0], stale));
}

TEST_CASE("several workers share the CPUs unless the user has decided", "[launch_plan]") {
  CHECK(has(plan(2, {}, 8)[0], "OMP_NUM_THREADS=4"));
  CHECK(has(plan(3, {}, 8)[0], "OMP_NUM_THREADS=2"));
  CHECK(has(plan(9, {}, 8)[0], "OMP_NUM_THREADS=1"));
  CHECK_FALSE(sets(plan(1, {}, 8)[0], "OMP_NUM_THREADS"));
  CHECK(has(plan(2, {"OMP_NUM_THREADS=7"}, 8)[0], "OMP_NUM_THREADS=7"));
}

TEST_CASE("errors of NCCL end a worker unless the user has decided", "[launch_plan]") {
  CHECK(has(plan(1, {})[0], "TORCH_NCCL_ASYNC_ERROR_HANDLING=1"));
  CHECK(has(plan(1, {"TORCH_NCCL_ASYNC_ERROR_HANDLING=0"})[0], "TORCH_NCCL_ASYNC_ERROR_HANDLING=0"));
}

}  // namespace
}  // namespace ddprun::launcher
