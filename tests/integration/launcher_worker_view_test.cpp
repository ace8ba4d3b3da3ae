// What a worker finds: environment, arguments, descriptors, signals, standard input.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/integration/job.h"
#include "tests/support/hex.h"

namespace ddprun::test {
namespace {

using nlohmann::json;

/// What `stub_worker dump` said, by rank.
std::vector<json> dumps(const Finished& run) {
  std::vector<json> list;
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) list.push_back(json::parse(line));
  std::sort(list.begin(), list.end(), [](const json& a, const json& b) {
    return std::stoi(a["env"]["RANK"].get<std::string>()) < std::stoi(b["env"]["RANK"].get<std::string>());
  });
  return list;
}

TEST_CASE("every worker gets torchrun's variables", "[launcher]") {
  Command command = job({"--nproc-per-node=3", "--rdzv-id=my-run"}, {"dump"});
  for (const char* name : {"OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"})
    command.env[name] = std::nullopt;
  const auto workers = dumps(Finished(command));
  REQUIRE(workers.size() == 3);
  for (int rank = 0; rank < 3; ++rank) {
    const json& env = workers[rank]["env"];
    const std::string text = std::to_string(rank);
    const std::map<std::string, std::string> expected = {{"RANK", text},
                                                         {"LOCAL_RANK", text},
                                                         {"ROLE_RANK", text},
                                                         {"GROUP_RANK", "0"},
                                                         {"WORLD_SIZE", "3"},
                                                         {"LOCAL_WORLD_SIZE", "3"},
                                                         {"ROLE_WORLD_SIZE", "3"},
                                                         {"GROUP_WORLD_SIZE", "1"},
                                                         {"ROLE_NAME", "default"},
                                                         {"MASTER_ADDR", "127.0.0.1"},
                                                         {"MASTER_PORT", workers[0]["env"]["MASTER_PORT"]},
                                                         {"TORCHELASTIC_RESTART_COUNT", "0"},
                                                         {"TORCHELASTIC_MAX_RESTARTS", "0"},
                                                         {"TORCHELASTIC_RUN_ID", "my-run"},
                                                         {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                                         {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"}};
    for (const auto& [name, value] : expected)
      CHECK(name + "=" + env.value(name, "(unset)") == name + "=" + value);
    CHECK(std::stoi(env["OMP_NUM_THREADS"].get<std::string>()) >= 1);
    CHECK(std::filesystem::path(env["TORCHELASTIC_ERROR_FILE"].get<std::string>()).is_absolute());
  }
  CHECK(workers[0]["env"]["TORCHELASTIC_ERROR_FILE"] != workers[1]["env"]["TORCHELASTIC_ERROR_FILE"]);
}

TEST_CASE("what another launcher left in the environment does not reach the workers", "[launcher]") {
  Command command = job({"--nproc-per-node=1"}, {"dump"});
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_PORT", "NODE_RANK", "TORCHELASTIC_USE_AGENT_STORE",
                           "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "DDPRUN_STORE_FD"})
    command.env[name] = "99999";
  command.env["OMP_NUM_THREADS"] = std::nullopt;
  command.env["UNRELATED"] = "kept";
  const auto workers = dumps(Finished(command));
  REQUIRE(workers.size() == 1);
  const json& env = workers[0]["env"];
  for (const auto& [name, value] : env.items()) CHECK(name + value.get<std::string>() != name + "99999");
  CHECK(env["UNRELATED"] == "kept");
  CHECK_FALSE(env.contains("NODE_RANK"));
  CHECK_FALSE(env.contains("OMP_NUM_THREADS"));  // a single worker may have all CPUs
}

TEST_CASE("a job inside a job gets its own variables", "[launcher]") {
  const Finished run({{DDPRUN_PROGRAM, "--nproc-per-node=2", DDPRUN_PROGRAM, "--nproc-per-node=2",
                       STUB_WORKER_PROGRAM, "dump"}});
  CHECK(run.status == ExitStatus::exited(0));
  const auto workers = dumps(run);
  REQUIRE(workers.size() == 4);
  for (const json& worker : workers) CHECK(worker["env"]["WORLD_SIZE"] == "2");
}

TEST_CASE("arguments reach the workers byte for byte", "[launcher]") {
  const std::vector<std::string> arguments = {
      "dump", "--nproc-per-node=7", "",         "a b", "$$",  "${local_rank}",
      "--",   "\xff\xfe not UTF-8", "'quote\"", "-h",  "x\ny"};
  const auto with_dashes = GENERATE(false, true);
  Command command{{DDPRUN_PROGRAM}};
  if (with_dashes) command.argv.push_back("--");
  command.argv.push_back(STUB_WORKER_PROGRAM);
  command.argv.insert(command.argv.end(), arguments.begin(), arguments.end());
  const auto workers = dumps(Finished(command));
  REQUIRE(workers.size() == 1);
  REQUIRE(workers[0]["argv"].size() == arguments.size() + 1);
  for (std::size_t i = 0; i < arguments.size(); ++i) CHECK(workers[0]["argv"][i + 1] == hex(arguments[i]));
}

TEST_CASE("workers inherit no descriptor but the standard ones, the status pipe and rank 0's socket",
          "[launcher]") {
  Command command = job({"--nproc-per-node=3"}, {"dump"});
  command.in_child = [] { ::dup2(::open("/dev/null", O_RDWR), 50); };
  const auto workers = dumps(Finished(command));
  REQUIRE(workers.size() == 3);
  const auto fd_of = [&](int rank, const char* name) {
    return std::stoi(workers[rank]["env"][name].get<std::string>());
  };
  std::set<int> fds{0, 1, 2, fd_of(0, "DDPRUN_STORE_FD"), fd_of(0, "DDPRUN_STATUS_FD")};
  CHECK(workers[0]["fds"] == json(fds));
  for (int rank : {1, 2}) {
    CHECK(workers[rank]["fds"] == json({0, 1, 2, fd_of(rank, "DDPRUN_STATUS_FD")}));
    CHECK_FALSE(workers[rank]["env"].contains("DDPRUN_STORE_FD"));
  }
}

TEST_CASE("a ddprun without standard streams gives its workers /dev/null for them", "[launcher]") {
  Command command = job({"--nproc-per-node=2"}, {"--rank", "0", "exit", "5", "--all", "pause"});
  command.in_child = [] {
    for (int fd : {0, 1, 2}) ::close(fd);
  };
  CHECK(Finished(command).status == ExitStatus::exited(5));
}

TEST_CASE("workers lead a session and have default signal handling", "[launcher]") {
  Command command = job({"--nproc-per-node=2"}, {"dump"});
  command.in_child = [] {
    for (int signal : {SIGINT, SIGQUIT, SIGPIPE, SIGCHLD, SIGTERM}) ::signal(signal, SIG_IGN);
    sigset_t all;
    sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
  };
  const auto workers = dumps(Finished(command));
  REQUIRE(workers.size() == 2);
  for (const json& worker : workers) {
    CHECK(worker["leads_session"] == true);
    CHECK(worker["ignored"].empty());
    CHECK(worker["blocked"].empty());
  }
}

TEST_CASE("rank 0 reads ddprun's standard input, the others read nothing", "[launcher]") {
  Command command = job({"--nproc-per-node=2"}, {"read-stdin"});
  command.stdin_text = "some text";
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(0));
  CHECK_THAT(run.out, ContainsSubstring("stdin rank 0: 'some text'"));
  CHECK_THAT(run.out, ContainsSubstring("stdin rank 1: ''"));
}

}  // namespace
}  // namespace ddprun::test
