#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/broken_promise.h"
#include "tests/support/catch.h"

namespace ddprun::test {

/// How many seeds a test runs.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr unsigned kSeeds = 2'000;  // ten times as slow
#else
constexpr unsigned kSeeds = 20'000;
#endif

/// The seed's simulation, after its run. Fails the test with the end of its story if it breaks a promise.
template <class Simulation>
std::unique_ptr<Simulation> run_seed(unsigned seed) {
  auto simulation = std::make_unique<Simulation>(seed, nullptr);
  try {
    simulation->run();
  } catch (const BrokenPromise& broken) {
    simulation.reset();
    std::vector<std::string> trace;
    try {
      Simulation(seed, &trace).run();
    } catch (const BrokenPromise&) {
    }
    std::string story;
    for (std::size_t i = trace.size() - std::min<std::size_t>(trace.size(), 60); i < trace.size(); ++i)
      story += "\n" + trace[i];
    FAIL("seed " << seed << ": " << broken.what() << story);
  }
  return simulation;
}

}  // namespace ddprun::test
