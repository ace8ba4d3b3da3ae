#include <cstdlib>
#include <set>
#include <stdexcept>
#include <string>

#include <torch/utils.h>

#include "tests/support/catch.h"
#include "tests/support/golden.h"
#include "tests/support/run_ranks.h"
#include "tests/worker/parity_case.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// Trains every case that `chosen` takes, on `world` ranks, and compares its losses with Python's. All
/// differences of a model are reported together.
template <typename Chosen>
void check_parity(const std::string& model, int world, Chosen chosen) {
  const auto cases = parity_cases(model, world);
  // Before torch reads them: the same instructions, so the same rounding, on every processor.
  for (const auto& [name, value] : cases.front().file["environment"].items())
    ::setenv(name.c_str(), std::string(value).c_str(), /*overwrite=*/1);
  run_ranks(world, [&](const ddp::ProcessGroup& group) {
    torch::set_num_threads(1);
    std::string differences;
    for (const auto& one : cases)
      if (chosen(one)) differences += compare_parity_case(one, train_parity_case(one, group));
    if (!differences.empty()) throw std::runtime_error(differences);
  });
}

bool all(const ParityCase&) { return true; }
bool in_single(const ParityCase& one) { return one.entry["dtype"] == "float32"; }
bool default_in_double(const ParityCase& one) {
  return one.entry["option"] == "default" && one.entry["dtype"] == "float64";
}
bool default_in_single(const ParityCase& one) { return one.entry["option"] == "default" && in_single(one); }

}  // namespace

TEST_CASE("losses of a model with an unused branch are Python's with every option", "[ddp_parity]") {
  check_parity("branched", GENERATE(2, 3), all);
}

TEST_CASE("losses of the MNIST CNN are Python's with every option", "[ddp_parity]") {
  check_parity("cnn", 3, in_single);
}

TEST_CASE("losses of the MNIST CNN are Python's in double precision", "[ddp_parity]") {
  check_parity("cnn", 2, default_in_double);
}

TEST_CASE("losses of ResNet-18 are Python's on two ranks in double precision", "[ddp_parity]") {
  check_parity("resnet18", 2, default_in_double);
}

TEST_CASE("losses of ResNet-18 are Python's on three ranks in single precision", "[ddp_parity]") {
  check_parity("resnet18", 3, default_in_single);
}

// Hidden, as it takes minutes.
TEST_CASE("losses of every model are Python's with every option", "[.ddp_parity_all]") {
  const std::string model = GENERATE("branched", "cnn", "resnet18");
  check_parity(model, GENERATE(2, 3), all);
}
