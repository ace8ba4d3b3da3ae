#include "tests/simulation/steps_simulation.h"
#include "tests/simulation/run_seed.h"

namespace ddprun::test {
namespace {

TEST_CASE("no completed step is lost or done twice, whenever ranks are killed", "[steps]") {
  int recoveries = 0, repeated = 0;
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    const auto simulation = run_seed<StepsSimulation>(seed);
    recoveries += simulation->rounds();
    repeated += simulation->repeated();
  }
  // Else it would have proved little.
  CHECK(recoveries > static_cast<int>(kSeeds) / 2);
  CHECK(repeated > static_cast<int>(kSeeds) / 2);
}

}  // namespace
}  // namespace ddprun::test
