#include "launcher/status/progress.h"

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

std::vector<OwnTime> times_of(const std::vector<double>& compute, const std::vector<double>& data = {},
                              std::int64_t step = 0) {
  std::vector<OwnTime> times;
  for (std::size_t i = 0; i < compute.size(); ++i)
    times.push_back({static_cast<int>(i), step, compute[i], data.empty() ? 0 : data[i]});
  return times;
}

TEST_CASE("a rank is slow by its compute time beside the median's", "[stragglers]") {
  const auto slow = slow_ranks(times_of({0.1, 0.11, 0.09, 0.18}));
  REQUIRE(slow.size() == 1);
  CHECK(slow[0].rank == 3);
  CHECK(slow[0].factor == Approx(1.8));
  CHECK_FALSE(slow[0].by_data);
  CHECK(slow_ranks(times_of({0.1, 0.11, 0.09, 0.149})).empty());
}

TEST_CASE("a rank that waits for its data is slow by data", "[stragglers]") {
  const auto slow = slow_ranks(times_of({0.1, 0.1, 0.1, 0.1}, {0, 0.1, 0, 0}));
  REQUIRE(slow.size() == 1);
  CHECK(slow[0].rank == 1);
  CHECK(slow[0].factor == Approx(2));
  CHECK(slow[0].by_data);
}

TEST_CASE("one of two ranks can be slow, but not one alone, nor all, nor the fast one", "[stragglers]") {
  CHECK(slow_ranks(times_of({0.1, 0.2})).size() == 1);
  CHECK(slow_ranks(times_of({0.1})).empty());
  CHECK(slow_ranks(times_of({0.2, 0.2, 0.2})).empty());
  CHECK(slow_ranks(times_of({0.2, 0.2, 0.01})).empty());
  CHECK(slow_ranks({}).empty());
}

TEST_CASE("microseconds are noise, whatever their factor", "[stragglers]") {
  CHECK(slow_ranks(times_of({0.0001, 0.0001, 0.0003})).empty());
  CHECK(slow_ranks(times_of({0, 0, 1})).empty());  // nothing to compare with
}

TEST_CASE("a rank is named once it has been slow for a while", "[stragglers]") {
  StragglerWatch watch;
  std::vector<Straggler> named;
  for (std::int64_t step = 100; step < 200 && named.empty(); step += 10)
    named = watch.look(times_of({0.1, 0.1, 0.3}, {}, step));
  REQUIRE(named.size() == 1);
  CHECK(describe(named[0]) == "rank 2 is 3.0 times slower than the median since step 100: compute, not data");
  CHECK(watch.look(times_of({0.1, 0.1, 0.3}, {}, 300)).empty());
  CHECK(watch.slow_now().size() == 1);
}

TEST_CASE("a slow rank on another node is named with it", "[stragglers]") {
  auto times = times_of({0.1, 0.1, 0.3});
  times[2].node = "node\x07-2";
  CHECK_THAT(describe(slow_ranks(times).at(0)),
             test::ContainsSubstring("rank 2 on node node?-2 is 3.0 times"));
}

TEST_CASE("a rank that is slow now and then is not named", "[stragglers]") {
  StragglerWatch watch;
  for (int i = 0; i < 20; ++i) CHECK(watch.look(times_of({0.1, 0.1, i % 3 != 0 ? 0.3 : 0.1})).empty());
}

TEST_CASE("a rank that is fast again is named again when it is slow again", "[stragglers]") {
  StragglerWatch watch;
  const auto look = [&](double seconds, std::int64_t step) {
    std::size_t named = 0;
    for (int i = 0; i < kSlowLooks; ++i)
      named += watch.look(times_of({0.1, 0.1, seconds}, {}, step + i)).size();
    return named;
  };
  CHECK(look(0.3, 0) == 1);
  CHECK(look(0.1, 10) == 0);
  CHECK(watch.slow_now().empty());
  CHECK(look(0.4, 20) == 1);
  CHECK(watch.slow_now()[0].since_step == 20);
}

}  // namespace
}  // namespace ddprun::launcher
