#include <ddprun/data/distributed_sampler.h>

#include <zlib.h>

#include <algorithm>
#include <numeric>

#include "tests/support/catch.h"
#include "tests/support/golden.h"

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
