#include <ddprun/train/state/checkpoint.h>

#include <torch/types.h>
#include <torch/utils.h>

#include <stdexcept>

#include <ddprun/serialize/pt_file.h>
#include "tests/support/catch.h"
#include "tests/worker/ddprun/serialize/pickled_values.h"

using namespace ddprun;
using namespace ddprun::train;

TEST_CASE("a generator goes on from where its state was taken", "[generator_state]") {
  torch::manual_seed(3);
  const auto skipped = torch::randn({7});  // an odd number of normal ones: half a pair is kept
  const auto state = generator_state(torch::kCPU);
  CHECK_FALSE(state.cuda.defined());
  const auto normal = torch::randn({5});
  const auto uniform = torch::rand({5});
  torch::manual_seed(4);
  set_generator_state(state, torch::kCPU);
  CHECK(torch::randn({5}).equal(normal));
  CHECK(torch::rand({5}).equal(uniform));
}

TEST_CASE("a generator goes on from a state of Python's", "[generator_state]") {
  const auto golden =
      serialize::read_pt(std::filesystem::path(DDPRUN_GOLDEN_DIR) / "python_files" / "generator.pt")
          .toGenericDict();
  set_generator_state({golden.at("state").toTensor(), {}}, torch::kCPU);
  CHECK(torch::rand({5}).equal(golden.at("next").toTensor()));
  CHECK(generator_state(torch::kCPU).cpu.equal(golden.at("then").toTensor()));
}

TEST_CASE("bytes that are not a generator's state are refused", "[generator_state]") {
  const auto before = generator_state(torch::kCPU);
  CHECK_THROWS_AS(set_generator_state({torch::ones({3}, torch::kByte), {}}, torch::kCPU),
                  std::invalid_argument);
  CHECK(generator_state(torch::kCPU).cpu.equal(before.cpu));
  CHECK_NOTHROW(set_generator_state({}, torch::kCPU));
}
