#include "worker/commands/commands.h"

#include <map>
#include <memory>

#include <torch/version.h>

#include <ddprun/common/held_port.h>
#include <ddprun/group/cuda_backend.h>
#include "tests/support/catch.h"
#include "tests/support/child.h"
#include "worker/commands/network_speed.h"

using namespace ddprun;
using namespace ddprun::worker;
using namespace std::chrono_literals;
using ddprun::test::ContainsSubstring;

namespace {

using Variables = std::map<std::string, std::string>;

EnvReport report_of(const Variables& variables) {
  const EnvLookup lookup = [&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  return inspect_environment(lookup, {});
}

const Variables kGood = {
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

test::Command worker_env(const Variables& variables, const std::string& seconds = "30") {
  test::Command command{{WORKER_PROGRAM, "env", "--timeout", seconds, "--device", "cpu"}};
  for (const auto& name : worker_variable_names()) command.env[name] = std::nullopt;
  for (const auto& [name, value] : variables) command.env[name] = value;
  return command;
}

/// The ranks of a job of two that no launcher started.
Variables of_rank(const HeldPort& port, int rank) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", "2"},
          {"MASTER_ADDR", port.address},
          {"MASTER_PORT", std::to_string(port.port)}};
}

}  // namespace

TEST_CASE("nothing is wrong in a good environment, which the report shows", "[env_report]") {
  const auto report = report_of(kGood);
  CHECK(report.problems == std::vector<std::string>{});
  CHECK(report.can_meet);
  const auto text = to_text(report, {{{"1", "host", "1", "cpu", "gloo", "127.0.0.1", "2.11.0"}, {}}});
  CAPTURE(text);
  for (const char* part :
       {"variables\n  RANK                          1\n", "  MASTER_ADDR                   127.0.0.1\n",
        "  OMP_NUM_THREADS               not set\n", "this rank\n  rank                          1 of 2\n",
        "  local rank                    1 of 2 on node 0 of 1\n",
        "  store                         127.0.0.1:29500\n", "  address                       127.0.0.1\n",
        "libraries\n", "  torch                         " TORCH_VERSION "\n",
        "ranks\n  rank  host  local rank  device  backend  address    torch\n",
        "  1     host  1           cpu     gloo     127.0.0.1  2.11.0\n", "\nall is fine\n"})
    CHECK_THAT(text, ContainsSubstring(part));
}

TEST_CASE("each variable that is wrong is told, all at once", "[env_report]") {
  const auto problem = [](const std::string& name, const std::string& value) {
    const auto report = report_of(with(kGood, name, value));
    CAPTURE(name, value);
    CHECK_FALSE(report.can_meet);
    REQUIRE(report.problems.size() == 1);
    return report.problems[0];
  };
  CHECK(problem("RANK", "2") == "RANK: expected an integer from 0 to 1, got '2'");
  CHECK(problem("WORLD_SIZE", "two") == "WORLD_SIZE: expected an integer from 1 to 16777216, got 'two'");
  CHECK(problem("MASTER_PORT", "99999") == "MASTER_PORT: expected an integer from 1 to 65535, got '99999'");
  CHECK(problem("LOCAL_RANK", "5") == "LOCAL_RANK: expected an integer from 0 to 1, got '5'");
  CHECK(problem("LOCAL_WORLD_SIZE", "0") == "LOCAL_WORLD_SIZE: expected an integer from 1 to 2, got '0'");
  CHECK_THAT(
      problem("MASTER_ADDR", ""),
      ContainsSubstring("environment: RANK, WORLD_SIZE and MASTER_PORT are set but MASTER_ADDR is not: "));
  CHECK_THAT(problem("MASTER_ADDR", "no..name"),
             ContainsSubstring("MASTER_ADDR: expected the address or name"));
  CHECK_THAT(problem("DDPRUN_STORE_FD", "987654"),
             ContainsSubstring("DDPRUN_STORE_FD: expected a socket bound to"));
  CHECK_THAT(problem("GROUP_WORLD_SIZE", "2"),
             ContainsSubstring("MASTER_ADDR: expected an address that all 2 nodes reach"));

  const auto several = report_of(with(with(kGood, "RANK", "-1"), "MASTER_PORT", "x")).problems;
  REQUIRE(several.size() == 2);
  CHECK_THAT(several[0], ContainsSubstring("RANK: "));
  CHECK_THAT(several[1], ContainsSubstring("MASTER_PORT: "));
}

TEST_CASE("an interface that is not there, and a GPU that is not, are wrong", "[env_report]") {
  const EnvLookup nothing = [](const std::string&) { return std::nullopt; };
  CHECK(inspect_environment(nothing, {.interface = "nosuch0"}).problems ==
        std::vector<std::string>{"interface: expected a network interface of this host, got 'nosuch0'"});
  if (!ddp::query_cuda_driver().gpus.empty()) test::skip("there is a GPU here");
  const auto problems = inspect_environment(nothing, {.device = ddp::DeviceChoice::kCuda}).problems;
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], ContainsSubstring("--device=cuda: expected an NVIDIA GPU, but "));
}

TEST_CASE("worker env of one process finds all fine", "[env_report]") {
  test::Child child(worker_env({}));
  CHECK(child.wait() == ExitStatus::exited(0));
  CHECK_THAT(child.out(),
             ContainsSubstring("none, a single process") && ContainsSubstring("\nall is fine\n"));
}

TEST_CASE("worker env of two ranks meets, and rank 0 alone prints", "[env_report]") {
  const HeldPort port;
  test::Child first(worker_env(of_rank(port, 0))), second(worker_env(of_rank(port, 1)));
  CHECK(first.wait() == ExitStatus::exited(0));
  CHECK(second.wait() == ExitStatus::exited(0));
  CHECK_THAT(first.out(),
             ContainsSubstring("\n  0 ") && ContainsSubstring("\n  1 ") && ContainsSubstring("all is fine"));
  CHECK(second.out() == "");
}

TEST_CASE("worker env names what ranks show only side by side", "[env_report]") {
  const HeldPort port;
  const auto same_place = [&](int rank) { return with(of_rank(port, rank), "LOCAL_RANK", "0"); };
  test::Child first(worker_env(same_place(0))), second(worker_env(same_place(1)));
  CHECK(first.wait() == ExitStatus::exited(1));
  CHECK(second.wait() == ExitStatus::exited(1));
  CHECK_THAT(first.out(),
             ContainsSubstring(
                 "wrong: rank 1: LOCAL_RANK: expected a different one for each rank of a host, got 0"));
}

TEST_CASE("worker env names a rank that does not come", "[env_report]") {
  const HeldPort port;
  test::Child child(worker_env(of_rank(port, 0), "0.5"));
  CHECK(child.wait() == ExitStatus::exited(1));
  CHECK_THAT(child.out(), ContainsSubstring("wrong: connecting at 127.0.0.1:" + std::to_string(port.port) +
                                            ": expected 2 ranks within 0.5 s, rank 1 did not arrive"));
}

TEST_CASE("worker env --network measures what two ranks exchange", "[env_report]") {
  const HeldPort port;
  const auto command = [&](int rank) {
    auto ranks = worker_env(of_rank(port, rank));
    ranks.argv.push_back("--network");
    return ranks;
  };
  test::Child first(command(0)), second(command(1));
  CHECK(first.wait() == ExitStatus::exited(0));
  CHECK(second.wait() == ExitStatus::exited(0));
  CHECK_THAT(first.out(), ContainsSubstring("network over gloo\n  all-reduce of 16 MiB") &&
                              ContainsSubstring(" us\n  slowest                       rank ") &&
                              ContainsSubstring("torch   GB/s\n") && ContainsSubstring("all is fine"));
}

TEST_CASE("worker env --network of one process has nothing to measure", "[env_report]") {
  auto command = worker_env({});
  command.argv.push_back("--network");
  test::Child child(command);
  CHECK(child.wait() == ExitStatus::exited(0));
  CHECK_THAT(child.out(), !ContainsSubstring("GB/s"));
}

TEST_CASE("ranks are paired over nodes, each with those of its own turn", "[env_report]") {
  using Rings = std::vector<std::vector<int>>;
  CHECK(network_rings({0, 0, 0}) == Rings{{0, 1, 2}});
  CHECK(network_rings({0, 0, 1, 1, 2, 2}) == Rings{{0, 2, 4}, {1, 3, 5}});
  CHECK(network_rings({0, 0, 1, 2, 2}) == Rings{{0, 2, 3}, {1, 4}});
}

TEST_CASE("a rank with less than half of the median speed is slow", "[env_report]") {
  CHECK(slow_links({1, 1}) == std::vector<std::string>(2));
  CHECK(slow_links({10, 9, 5}) == std::vector<std::string>(3));
  CHECK(slow_links({0, 9, 10, 4, 11}) ==  // rank 0 had no partner
        std::vector<std::string>{
            "", "", "", "network: expected about 10 GB/s to a neighbour, as half of the ranks have, got 4",
            ""});
}

TEST_CASE("worker env refuses a flag that it does not know", "[env_report]") {
  auto command = worker_env({});
  command.argv.push_back("--nosuch");
  test::Child child(command);
  CHECK(child.wait() == ExitStatus::exited(2));
}
