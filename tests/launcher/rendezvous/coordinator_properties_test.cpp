#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/launcher/rendezvous/cut_network.h"
#include "tests/launcher/rendezvous/job_simulation.h"
#include "tests/launcher/rendezvous/link_simulation.h"
#include "tests/launcher/rendezvous/takeover_simulation.h"
#include "tests/simulation/run_seed.h"
#include "tests/support/catch.h"

namespace ddprun::test {
using namespace launcher;
namespace {

// What is promised: job_oracle.cpp. What happens: job_simulation_nodes.cpp.
TEST_CASE("simulated networks are cut in one direction, around one node, in halves, and heal halfway",
          "[coordinator]") {
  constexpr std::size_t kHosts = 4;
  std::mt19937 random(1);
  int one_way = 0, alone = 0, halves = 0, halfway = 0;
  for (int i = 0; i < 400; ++i) {
    CutNetwork network(random);
    network.cut(kHosts);
    std::vector<std::size_t> unreachable;  // for how many others each host is
    std::size_t cuts = 0;
    bool both = true;
    for (std::size_t to = 0; to < kHosts; ++to) {
      unreachable.push_back(0);
      for (std::size_t from = 0; from < kHosts; ++from) {
        unreachable.back() += network.carries(from, to) ? 0 : 1;
        both = both && network.carries(from, to) == network.carries(to, from);
      }
      cuts += unreachable.back();
    }
    one_way += both ? 0 : 1;
    alone += both && cuts == 6 && std::ranges::count(unreachable, kHosts - 1) == 1 ? 1 : 0;
    halves += both && std::ranges::count(unreachable, kHosts / 2) == kHosts ? 1 : 0;
    network.mend_halfway();
    std::size_t left = 0;
    for (std::size_t to = 0; to < kHosts; ++to)
      for (std::size_t from = 0; from < kHosts; ++from) left += network.carries(from, to) ? 0 : 1;
    halfway += left > 0 && left < cuts ? 1 : 0;
  }
  for (const int kind : {one_way, alone, halves, halfway}) CHECK(kind > 20);
}

TEST_CASE("a coordinator keeps its promises whatever its nodes do", "[coordinator]") {
  std::map<int, int> ends;
  int restarted = 0, in_place = 0, drains = 0;
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    const auto simulation = run_seed<JobSimulation>(seed);
    ++ends[simulation->end().exit_code];
    if (simulation->rounds() > 1) ++restarted;
    if (simulation->rounds_in_place() > 0) ++in_place;
    drains += simulation->drains();
  }
  // Else it would have proved little.
  for (const int code : {0, 1, 7, 124, 125, 127, 130, 139, 143}) {
    INFO("exit code " << code << ": " << ends[code]);
    CHECK(ends[code] > 0);
  }
  CHECK(ends[0] > static_cast<int>(kSeeds) / 5);
  CHECK(restarted > static_cast<int>(kSeeds) / 5);
  CHECK(in_place > static_cast<int>(kSeeds) / 40);
  CHECK(drains > static_cast<int>(kSeeds) / 20);
}

TEST_CASE("a lost coordinator's place is taken once, however the network breaks", "[takeover]") {
  int takeovers = 0, successes = 0, drains = 0;
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    const auto simulation = run_seed<TakeoverSimulation>(seed);
    drains += simulation->drains();
    takeovers += std::max(simulation->takeovers(), 0);
    successes += simulation->succeeded() ? 1 : 0;
  }
  // Else it would have proved little.
  CHECK(takeovers > static_cast<int>(kSeeds) / 20);
  CHECK(successes > static_cast<int>(kSeeds) / 3);
  CHECK(drains > static_cast<int>(kSeeds) / 10);
}

TEST_CASE("the same holds where nodes and coordinators talk over their real connections", "[takeover]") {
  constexpr unsigned kJobs = kSeeds / 50;  // each takes as long as 30 of the others
  int takeovers = 0, successes = 0;
  for (unsigned seed = 1; seed <= kJobs; ++seed) {
    const auto simulation = run_seed<LinkSimulation>(seed);
    takeovers += std::max(simulation->takeovers(), 0);
    successes += simulation->succeeded() ? 1 : 0;
  }
  CHECK(takeovers > static_cast<int>(kJobs) / 20);
  CHECK(successes > static_cast<int>(kJobs) / 3);
}

TEST_CASE("where clocks differ by more than is allowed for, jobs end too late, but never run twice",
          "[takeover]") {
  const auto broken = [](unsigned seed, double slowest_clock) -> std::string {
    try {
      TakeoverSimulation(seed, nullptr, slowest_clock).run();
    } catch (const BrokenPromise& promise) {
      return promise.what();
    }
    return "";
  };
  CHECK(broken(25, 0.3) == "a program does not end");  // it waits for --join-timeout, by its clock
  CHECK(broken(25, TakeoverSimulation::kSlowestClock) == "");
  for (unsigned seed = 1; seed <= kSeeds / 20; ++seed) {
    const auto promise = broken(seed, 0.3);
    CAPTURE(seed, promise);
    CHECK((promise.empty() || promise == "a program does not end"));
  }
}

}  // namespace
}  // namespace ddprun::test
