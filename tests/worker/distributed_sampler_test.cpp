#include "worker/data/distributed_sampler.h"

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
