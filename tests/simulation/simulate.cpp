// simulate: runs made-up jobs, each from its seed, until one breaks a promise.
//
// usage: simulate [--takeover [--slowest-clock X] | --links | --steps] [--seed N] [--count N] [--trace]
//   --takeover  jobs whose coordinator may be lost, over networks that break
//   --slowest-clock X  the speed of the slowest host's clock, beside 1 [0.8, for which the promises hold]
//   --links     the same with ddprun's connections, over simulated sockets; slower
//   --steps     trainings whose ranks are killed and recover
//   --seed N    the first seed [1]
//   --count N   how many [1]
//   --trace     print what happens
// The exit code is 1 if a promise was broken; the same seed breaks it again.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "tests/launcher/rendezvous/job_simulation.h"
#include "tests/launcher/rendezvous/link_simulation.h"
#include "tests/launcher/rendezvous/takeover_simulation.h"
#include "tests/simulation/steps_simulation.h"

namespace {

using namespace ddprun::test;

/// False if the job of this seed breaks a promise, which is printed. Else sums up what happened.
template <class Simulation>
bool run(unsigned seed, bool traced, const std::function<void(const Simulation&)>& sum_up, auto... how) {
  std::vector<std::string> trace;
  std::string broken;
  Simulation simulation(seed, traced ? &trace : nullptr, how...);
  try {
    simulation.run();
  } catch (const BrokenPromise& error) {
    broken = error.what();
  }
  for (const std::string& line : trace) std::printf("%s\n", line.c_str());
  if (!broken.empty()) std::printf("seed %u: %s\n", seed, broken.c_str());
  sum_up(simulation);
  return broken.empty();
}

}  // namespace

int main(int argc, char** argv) {
  unsigned first = 1, count = 1;
  bool traced = false, takeover = false, links = false, steps = false;
  double slowest_clock = TakeoverSimulation::kSlowestClock;
  try {
    for (int i = 1; i < argc; ++i) {
      const std::string flag = argv[i];
      if (flag == "--trace")
        traced = true;
      else if (flag == "--takeover")
        takeover = true;
      else if (flag == "--links")
        links = true;
      else if (flag == "--steps")
        steps = true;
      else if (i + 1 < argc && flag == "--slowest-clock")
        slowest_clock = std::stod(argv[++i]);
      else if (i + 1 < argc && (flag == "--seed" || flag == "--count"))
        (flag == "--seed" ? first : count) = static_cast<unsigned>(std::stoul(argv[++i]));
      else
        throw std::invalid_argument(flag);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr,
                 "usage: simulate [--takeover [--slowest-clock X] | --links | --steps] [--seed N] [--count "
                 "N] [--trace]: %s\n",
                 error.what());
    return 2;
  }
  long long rounds = 0, in_place = 0, takeovers = 0, successes = 0, completed = 0, repeated = 0, drains = 0;
  const auto run_one = [&](unsigned seed) {
    if (takeover)
      return run<TakeoverSimulation>(
          seed, traced,
          [&](const TakeoverSimulation& job) {
            takeovers += std::max(job.takeovers(), 0);
            successes += job.succeeded() ? 1 : 0;
            drains += job.drains();
          },
          slowest_clock);
    if (links)
      return run<LinkSimulation>(seed, traced, [&](const LinkSimulation& job) {
        takeovers += std::max(job.takeovers(), 0);
        successes += job.succeeded() ? 1 : 0;
      });
    if (steps)
      return run<StepsSimulation>(seed, traced, [&](const StepsSimulation& training) {
        rounds += training.rounds();
        completed += training.steps();
        repeated += training.repeated();
      });
    return run<JobSimulation>(seed, traced, [&](const JobSimulation& job) {
      rounds += job.rounds();
      in_place += job.rounds_in_place();
      drains += job.drains();
    });
  };
  for (unsigned seed = first; seed != first + count; ++seed)
    if (!run_one(seed)) return EXIT_FAILURE;
  if (takeover || links)
    std::printf("%u jobs, %lld takeovers, %lld successes, %lld drains: all promises kept\n", count, takeovers,
                successes, drains);
  else if (steps)
    std::printf("%u trainings, %lld steps, %lld recoveries, %lld steps computed again: all promises kept\n",
                count, completed, rounds, repeated);
  else
    std::printf("%u jobs, %lld rounds, %lld of them in place, %lld drains: all promises kept\n", count,
                rounds, in_place, drains);
}
