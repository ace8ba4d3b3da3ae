#include <map>

#include "tests/launcher/rendezvous/job_simulation.h"
#include "tests/launcher/rendezvous/takeover_simulation.h"
#include "tests/support/catch.h"

namespace ddprun::test {
using namespace launcher;
namespace {

/// The end of the story of a sequence that went wrong.
std::string last_events(unsigned seed) {
  std::vector<std::string> trace;
  try {
    JobSimulation(seed, &trace).run();
  } catch (const BrokenPromise&) {
  }
  std::string text;
  for (std::size_t i = trace.size() > 60 ? trace.size() - 60 : 0; i < trace.size(); ++i)
    text += trace[i] + "\n";
  return text;
}

// What is promised: job_oracle.cpp. What happens: job_simulation_nodes.cpp.
TEST_CASE("a coordinator keeps its promises whatever its nodes do", "[coordinator]") {
  std::map<int, int> ends;
  int restarted = 0, in_place = 0;
  constexpr int kSequences = 20'000;
  for (int i = 1; i <= kSequences; ++i) {
    const auto seed = static_cast<unsigned>(i);
    JobSimulation simulation(seed, nullptr);
    try {
      simulation.run();
    } catch (const BrokenPromise& broken) {
      FAIL("seed " << seed << ": " << broken.what() << "\n" << last_events(seed));
    }
    ++ends[simulation.end().exit_code];
    if (simulation.rounds() > 1) ++restarted;
    if (simulation.rounds_in_place() > 0) ++in_place;
  }
  // Else it would have proved little.
  for (const int code : {0, 1, 7, 124, 125, 127, 130, 139, 143}) {
    INFO("exit code " << code << ": " << ends[code]);
    CHECK(ends[code] > 0);
  }
  CHECK(ends[0] > kSequences / 5);
  CHECK(restarted > kSequences / 5);
  CHECK(in_place > kSequences / 40);
}

TEST_CASE("a lost coordinator's place is taken once, however the network breaks", "[takeover]") {
  int takeovers = 0, successes = 0;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr unsigned kSequences = 2'000;  // ten times as slow
#else
  constexpr unsigned kSequences = 20'000;
#endif
  for (unsigned seed = 1; seed <= kSequences; ++seed) {
    TakeoverSimulation simulation(seed, nullptr);
    try {
      simulation.run();
    } catch (const BrokenPromise& broken) {
      FAIL("seed " << seed << ": " << broken.what() << " (build/tests/simulate --takeover --trace)");
    }
    takeovers += std::max(simulation.takeovers(), 0);
    successes += simulation.succeeded() ? 1 : 0;
  }
  // Else it would have proved little.
  CHECK(takeovers > static_cast<int>(kSequences) / 20);
  CHECK(successes > static_cast<int>(kSequences) / 3);
}

}  // namespace
}  // namespace ddprun::test
