// Jobs of programs on ddprun::run.
#include <chrono>
#include <string>
#include <vector>

#include <ddprun/common/held_port.h>
#include "tests/integration/job.h"

using namespace ddprun;
using namespace ddprun::test;
using namespace std::chrono_literals;

namespace {

/// Far below a collective's half an hour.
constexpr std::chrono::seconds kAtOnce{25};

struct Case {
  const char* how;
  const char* error;            ///< of rank 0, which waits
  const char* seen_by_1 = "-";  ///< what rank 1 says, which may be first
};

/// By how rank 1 goes its own way.
std::vector<Case> divergences() {
  return {
      {"return", " of 1 double: rank 1 has finished and makes no more calls [",
       "rank 0 called all_reduce of 1 double and waits there, but this rank has finished ["},
      {"fewer batches", "(bucket 0): rank 1 has finished and makes no more calls [",
       "rank 0 called all_reduce of 4 float (bucket 0) and waits there, but this rank has finished ["},
      {"return from a subgroup", " of 1 double: rank 1 has finished and makes no more calls ["},
      {"barrier return", ": rank 1 has finished and makes no more calls [",
       "rank 0 called barrier and waits there, but this rank has finished ["},
      {"exit", " of 1 double: rank 1 has ended or does not answer"},
      {"barrier exit", ": rank 1 has ended or does not answer"},
      {"skip", " of 1 double: rank 1 called broadcast of 3 float from rank 1 while this rank made that call",
       " of 3 float from rank 1: rank 0 called all_reduce of 1 double while this rank made that call"},
      {"barrier skip", ": rank 1 called broadcast of 3 float from rank 1 while this rank made that call",
       " of 3 float from rank 1: rank 0 called barrier while this rank made that call"}};
}

}  // namespace

TEST_CASE("a rank that returns early, or makes another call than the others, is named within seconds",
          "[own_program]") {
  const auto divergence = GENERATE(Catch::Generators::from_range(divergences()));
  CAPTURE(divergence.how);
  Child child(ddprun_command({"--nproc-per-node=2", DIVERGING_WORKER_PROGRAM, divergence.how}));
  const auto status = child.wait(kAtOnce);
  CAPTURE(child.err());
  CHECK(status == ExitStatus::exited(1));
  const auto says = [&](const std::string& text) { return child.err().find(text) != std::string::npos; };
  CHECK((says(divergence.error) || says(divergence.seen_by_1)));
  CHECK_FALSE(says("timed out"));
  check_nothing_left(child);
}

TEST_CASE("it is named with torchrun's variables alone, and all ranks end", "[own_program]") {
  const auto divergence = GENERATE(Catch::Generators::from_range(divergences()));
  CAPTURE(divergence.how);
  const HeldPort held;  // rank 0 can listen on it, and nobody else gets it
  const auto port = std::to_string(held.port);
  const auto start = [&](const std::string& rank) {
    return Command{{DIVERGING_WORKER_PROGRAM, divergence.how},
                   {{"RANK", rank},
                    {"LOCAL_RANK", rank},
                    {"WORLD_SIZE", "2"},
                    {"LOCAL_WORLD_SIZE", "2"},
                    {"MASTER_ADDR", "127.0.0.1"},
                    {"MASTER_PORT", port},
                    {"OMP_NUM_THREADS", "1"}}};
  };
  Child first(start("0")), second(start("1"));
  const auto status = first.wait(kAtOnce);
  CAPTURE(first.err());
  CHECK(status == ExitStatus::exited(1));
  CHECK_THAT(first.err(), ContainsSubstring(std::string(divergence.error)));
  const bool exits = std::string(divergence.how).ends_with("exit");
  CHECK(second.wait(kAtOnce) == ExitStatus::exited(exits ? 0 : 1));
}

TEST_CASE("the ranks of a program that calls ddprun::run twice meet again", "[own_program]") {
  Child child(ddprun_command({"--nproc-per-node=2", DIVERGING_WORKER_PROGRAM, "twice"}));
  const auto status = child.wait(kAtOnce);
  CAPTURE(child.out(), child.err());
  CHECK(status == ExitStatus::exited(0));
  for (const char* rank : {"rank 0, ", "rank 1, "})
    for (const char* sum : {"run 1: sum over ranks 3\n", "run 2: sum over ranks 6\n"})
      CHECK(count_of(rank + std::string(sum), child.out()) == 1);
  check_nothing_left(child);
}

TEST_CASE("ranks that are seconds apart, at a step or at the end, and save after it, are left alone",
          "[own_program]") {
  Child child(ddprun_command({"--nproc-per-node=3", DIVERGING_WORKER_PROGRAM, "slow"}));
  const auto status = child.wait(kAtOnce);
  CAPTURE(child.err());
  CHECK(status == ExitStatus::exited(0));
  for (const char* rank : {"0", "1", "2"})
    CHECK_THAT(child.out(), ContainsSubstring("rank " + std::string(rank) + " is done"));
}
