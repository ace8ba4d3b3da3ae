#include <ddprun/data/subset.h>

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <torch/types.h>

#include <ddprun/data/image_dataset.h>
#include "tests/support/catch.h"
#include "tests/support/golden.h"
#include "worker/tasks/registry.h"

using namespace ddprun::data;

namespace {

unsigned long crc_of(const std::vector<std::int64_t>& numbers) {
  return ::crc32(0, reinterpret_cast<const Bytef*>(numbers.data()), static_cast<uInt>(numbers.size() * 8));
}

std::shared_ptr<ImageDataset> augmented_images() {
  const ImageTransform transform({.mean = {.5f}, .std = {.5f}, .padding = 2, .flip = true, .seed = 3});
  return std::make_shared<ImageDataset>(
      Images{torch::arange(50 * 36).view({50, 1, 6, 6}).to(torch::kUInt8), torch::arange(50)}, transform);
}

}  // namespace

TEST_CASE("a split is PyTorch's random_split, bit for bit", "[subset]") {
  const auto cases = ddprun::test::read_golden("random_split/cases.json");
  REQUIRE(cases.size() >= 30);
  for (const auto& golden : cases) {
    CAPTURE(golden.dump());
    const auto split = random_split(golden["size"], golden["fraction"], golden["seed"]);
    CHECK(split.train.size() == golden["sizes"][0].get<std::size_t>());
    CHECK(split.validation.size() == golden["sizes"][1].get<std::size_t>());
    CHECK(crc_of(split.train) == golden["crcs"][0].get<unsigned long>());
    CHECK(crc_of(split.validation) == golden["crcs"][1].get<unsigned long>());
  }
}

TEST_CASE("each part of a split has an example at least", "[subset]") {
  for (const std::int64_t size : {2, 3, 9}) {
    CHECK(random_split(size, 0.1, 0).validation.size() == 1);
    CHECK(random_split(size, 1 - 1e-16, 0).train.size() == 1);
  }
  const auto split = random_split(9, 0.1, 5);
  auto all = split.train;
  all.insert(all.end(), split.validation.begin(), split.validation.end());
  CHECK(std::is_permutation(all.begin(), all.end(), std::vector{0, 1, 2, 3, 4, 5, 6, 7, 8}.begin()));
}

TEST_CASE("a split that cannot be is refused", "[subset]") {
  CHECK_THROWS_AS(random_split(100, 0, 0), std::invalid_argument);
  CHECK_THROWS_AS(random_split(100, 1, 0), std::invalid_argument);
  CHECK_THROWS_AS(random_split(100, NAN, 0), std::invalid_argument);
  CHECK_THROWS_WITH(random_split(1, 0.5, 0),
                    "random_split: expected two examples or more, one a part, got 1");
  CHECK_THROWS_AS(random_split(0, 0.5, 0), std::invalid_argument);
  ddprun::worker::Config config;
  config.data.val_split = 0.1;
  const auto one = std::make_shared<Subset>(augmented_images(), std::vector<std::int64_t>{7});
  CHECK_THROWS_WITH(ddprun::worker::split_for_validation(one, one, config),
                    "--val-split 0.1: expected two examples or more, one a part, got 1");
}

TEST_CASE("a subset gives its examples, augmented by their numbers in the whole", "[subset]") {
  const auto whole = augmented_images();
  const Subset subset(whole, {49, 7, 7, 0});
  CHECK(subset.size() == 4);
  CHECK(subset.get_batch({0, 3}).target.equal(torch::tensor({49, 0}, torch::kInt64)));
  CHECK(subset.get_batch({1}).input.equal(whole->get_batch({7}).input));
  const auto batch = subset.get_epoch_batch({0, 1, 3}, 5);
  CHECK(batch.input.equal(whole->get_epoch_batch({49, 7, 0}, 5).input));
  CHECK_FALSE(batch.input.equal(subset.get_batch({0, 1, 3}).input));
  CHECK_THROWS_AS(Subset(whole, {50}), std::invalid_argument);
  CHECK_THROWS_AS(Subset(whole, {-1}), std::invalid_argument);
}

TEST_CASE("a limit keeps the first", "[subset]") {
  CHECK(first({5, 3, 9}, 2) == std::vector<std::int64_t>{5, 3});
  CHECK(first({5, 3, 9}, 0).size() == 3);
  CHECK(first({5, 3, 9}, 4).size() == 3);
}
