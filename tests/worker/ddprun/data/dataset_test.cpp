#include <ddprun/data/dataset.h>

#include <zlib.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include <ddprun/data/image_dataset.h>
#include "tests/support/catch.h"
#include "tests/support/golden.h"
#include "worker/tasks/registry.h"

using ddprun::data::DistributedSampler;
using ddprun::data::exact_share;

TEST_CASE("sampler gives every rank PyTorch's order, bit for bit", "[distributed_sampler]") {
  const auto cases = ddprun::test::read_golden("sampler/orders.json");
  REQUIRE(cases.size() >= 100);
  for (const auto& golden : cases) {
    CAPTURE(golden.dump());
    const int replicas = golden["replicas"];
    for (int rank = 0; rank < replicas; ++rank) {
      DistributedSampler sampler(golden["size"], replicas, rank,
                                 {golden["shuffle"], golden["seed"], golden["drop_last"]});
      sampler.set_epoch(golden["epoch"]);
      const auto order = sampler.indices();
      const auto& expected = golden["ranks"][static_cast<std::size_t>(rank)];
      REQUIRE(order.size() == expected[0].get<std::size_t>());
      REQUIRE(sampler.num_samples() == static_cast<std::int64_t>(order.size()));
      const std::vector<std::int64_t> head(order.begin(),
                                           order.begin() + std::min<std::ptrdiff_t>(10, order.size()));
      REQUIRE(head == expected[1].get<std::vector<std::int64_t>>());
      const auto crc =
          ::crc32(0, reinterpret_cast<const Bytef*>(order.data()), static_cast<uInt>(order.size() * 8));
      REQUIRE(crc == expected[2].get<unsigned long>());
    }
  }
}

TEST_CASE("without its padding the ranks' orders hold each example once", "[distributed_sampler]") {
  for (const int size : {1, 2, 7, 10, 101})
    for (const int replicas : {1, 2, 3, 5, 16}) {
      std::vector<std::int64_t> all;
      for (int rank = 0; rank < replicas; ++rank) {
        const DistributedSampler sampler(size, replicas, rank, {});
        const auto order = sampler.indices();
        all.insert(all.end(), order.begin(), order.begin() + sampler.num_without_padding());
      }
      std::sort(all.begin(), all.end());
      std::vector<std::int64_t> expected(static_cast<std::size_t>(size));
      std::iota(expected.begin(), expected.end(), 0);
      CHECK(all == expected);
      CHECK(DistributedSampler(size, replicas, 0, {.drop_last = true}).num_without_padding() ==
            size / replicas);
    }
}

TEST_CASE("sampler gives another order in another epoch", "[distributed_sampler]") {
  DistributedSampler sampler(100, 2, 0, {});
  const auto first = sampler.indices();
  sampler.set_epoch(1);
  CHECK(sampler.indices() != first);
  sampler.set_epoch(0);
  CHECK(sampler.indices() == first);
}

TEST_CASE("sampler goes on in the middle of an epoch where it stopped", "[distributed_sampler]") {
  for (const bool drop_last : {false, true})
    for (const int size : {1, 7, 100, 101})
      for (const int replicas : {1, 2, 3}) {
        DistributedSampler sampler(size, replicas, replicas - 1, {.seed = 5, .drop_last = drop_last});
        sampler.set_epoch(3);
        const auto whole = sampler.indices();
        const auto unpadded = sampler.num_without_padding();
        for (std::size_t done = 0; done <= whole.size(); ++done) {
          CAPTURE(size, replicas, done, drop_last);
          sampler.set_epoch(3, static_cast<std::int64_t>(done) * replicas);
          CHECK(sampler.indices() ==
                std::vector(whole.begin() + static_cast<std::ptrdiff_t>(done), whole.end()));
          CHECK(sampler.num_samples() == static_cast<std::int64_t>(whole.size() - done));
          CHECK(sampler.num_without_padding() ==
                std::max<std::int64_t>(0, unpadded - static_cast<std::int64_t>(done)));
        }
      }
}

TEST_CASE("with another number of ranks an epoch goes on with what nobody has seen",
          "[distributed_sampler]") {
  const int size = 103, before = 2, after = 3, done = 20;
  std::vector<std::int64_t> all;
  for (int rank = 0; rank < before; ++rank) {
    const auto order = DistributedSampler(size, before, rank, {}).indices();
    all.insert(all.end(), order.begin(), order.begin() + done);
  }
  for (int rank = 0; rank < after; ++rank) {
    DistributedSampler sampler(size, after, rank, {});
    sampler.set_epoch(0, done * before);
    const auto order = sampler.indices();
    all.insert(all.end(), order.begin(), order.begin() + sampler.num_without_padding());
  }
  std::sort(all.begin(), all.end());
  std::vector<std::int64_t> expected(size);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(all == expected);
}

TEST_CASE("sampler begins the next epoch whole", "[distributed_sampler]") {
  DistributedSampler sampler(10, 2, 0, {});
  sampler.set_epoch(1, 6);
  CHECK(sampler.num_samples() == 2);
  sampler.set_epoch(2);
  CHECK(sampler.num_samples() == 5);
  CHECK_THROWS_AS(sampler.set_epoch(2, -1), std::invalid_argument);
}

TEST_CASE("sampler refuses a rank outside the world and an empty set", "[distributed_sampler]") {
  CHECK_THROWS_AS(DistributedSampler(10, 2, 2, {}), std::invalid_argument);
  CHECK_THROWS_AS(DistributedSampler(10, 2, -1, {}), std::invalid_argument);
  CHECK_THROWS_AS(DistributedSampler(0, 2, 0, {}), std::invalid_argument);
}

TEST_CASE("exact shares hold each example once, whatever the world size", "[distributed_sampler]") {
  for (const int size : {0, 1, 10, 101})
    for (const int replicas : {1, 2, 3, 7, 16}) {
      std::vector<std::int64_t> all;
      for (int rank = 0; rank < replicas; ++rank) {
        const auto share = exact_share(size, replicas, rank);
        all.insert(all.end(), share.begin(), share.end());
      }
      std::sort(all.begin(), all.end());
      std::vector<std::int64_t> expected(static_cast<std::size_t>(size));
      std::iota(expected.begin(), expected.end(), 0);
      CHECK(all == expected);
    }
}

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
                    "random_split: expected at least two examples, one for each part, got 1");
  CHECK_THROWS_AS(random_split(0, 0.5, 0), std::invalid_argument);
  ddprun::worker::Config config;
  config.data.val_split = 0.1;
  const auto one = std::make_shared<Subset>(augmented_images(), std::vector<std::int64_t>{7});
  CHECK_THROWS_WITH(ddprun::worker::split_for_validation(one, one, config),
                    "--val-split 0.1: expected at least two examples, one for each part, got 1");
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
