#include <ddprun/data/tensor_dataset.h>

#include <zlib.h>

#include <stdexcept>

#include <ATen/CPUGeneratorImpl.h>

#include "tests/support/catch.h"
#include "tests/support/golden.h"

using namespace ddprun::data;

namespace {

unsigned long crc_of(const torch::Tensor& tensor) {
  return ::crc32(0, reinterpret_cast<const Bytef*>(tensor.const_data_ptr()),
                 static_cast<uInt>(tensor.nbytes()));
}

void check_row(const torch::Tensor& row, const nlohmann::json& expected) {
  REQUIRE(row.size(0) == static_cast<std::int64_t>(expected.size()));
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(row[static_cast<std::int64_t>(i)].item<float>() ==
          ddprun::test::Approx(expected[i].get<float>()).epsilon(1e-6).margin(1e-6));
}

}  // namespace

TEST_CASE("made-up data are those that PyTorch draws from the seed", "[toy_datasets]") {
  const auto cases = ddprun::test::read_golden("toy_datasets/cases.json");
  REQUIRE(cases.size() == 4);
  for (const auto& golden : cases) {
    CAPTURE(golden.dump());
    const std::uint64_t seed = golden["seed"];
    const bool toy = golden["name"] == "toy";
    torch::manual_seed(seed);
    const auto set = toy ? make_toy_dataset() : make_linear_dataset();
    CHECK(torch::rand(1).item<float>() == golden["after"].get<float>());  // what a model's weights come from
    CHECK(set.size() == (toy ? 2048 : 1000));
    CHECK(set.input().size(1) == (toy ? 20 : 10));
    CHECK(crc_of(set.target()) == golden["target_crc"].get<unsigned long>());
    if (toy) CHECK(crc_of(set.input()) == golden["input_crc"].get<unsigned long>());
    check_row(set.input()[0], golden["first"]);
    check_row(set.input()[-1], golden["last"]);
    check_row(set.target().flatten().slice(0, 0, 10), golden["target"]);

    const auto generator = at::detail::createCPUGenerator(seed);
    const auto own = toy ? make_toy_dataset(generator) : make_linear_dataset(generator);
    CHECK(torch::equal(own.input(), set.input()));
    CHECK(torch::equal(own.target(), set.target()));
  }
}

TEST_CASE("a tensor dataset gives rows by number", "[toy_datasets]") {
  const TensorDataset set(torch::arange(12).view({6, 2}).to(torch::kFloat32), torch::arange(6));
  CHECK(set.size() == 6);
  const auto batch = set.get_batch({4, 0, 4});
  CHECK(batch.input.equal(torch::tensor({{8.f, 9.f}, {0.f, 1.f}, {8.f, 9.f}})));
  CHECK(batch.target.equal(torch::tensor({4, 0, 4}, torch::kInt64)));
  CHECK_THROWS_AS(TensorDataset(torch::zeros({2, 1}), torch::zeros({3})), std::invalid_argument);
  CHECK_THROWS_AS(TensorDataset(torch::zeros({0, 1}), torch::zeros({0})), std::invalid_argument);
}
