#include "tests/simulation/steps_simulation.h"

#include "tests/support/catch.h"

namespace ddprun::test {
namespace {

TEST_CASE("no completed step is lost or done twice, whenever ranks are killed", "[steps]") {
  int recoveries = 0, repeated = 0;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr unsigned kTrainings = 2'000;  // ten times as slow
#else
  constexpr unsigned kTrainings = 20'000;
#endif
  for (unsigned seed = 1; seed <= kTrainings; ++seed) {
    StepsSimulation simulation(seed, nullptr);
    try {
      simulation.run();
    } catch (const BrokenPromise& broken) {
      FAIL("seed " << seed << ": " << broken.what() << " (build/tests/simulate --steps --trace)");
    }
    recoveries += simulation.rounds();
    repeated += simulation.repeated();
  }
  // Else it would have proved little.
  CHECK(recoveries > static_cast<int>(kTrainings) / 2);
  CHECK(repeated > static_cast<int>(kTrainings) / 2);
}

}  // namespace
}  // namespace ddprun::test
