#include <ddprun/train/loop/estimate.h>

#include "tests/support/catch.h"

using namespace ddprun::train;
using ddprun::test::Approx;
using ddprun::test::ContainsSubstring;

TEST_CASE("what ranks exchange grows as a ring's share, what they compute stays", "[estimate]") {
  const MeasuredSteps two{2, 0.012, 0.010};
  CHECK(seconds_per_batch(two, 1) == Approx(0.010));
  CHECK(seconds_per_batch(two, 2) == Approx(0.012));
  CHECK(seconds_per_batch(two, 4) == Approx(0.013));
  CHECK(seconds_per_batch(two, 8) == Approx(0.0135));
  CHECK(seconds_per_batch({2, 0.009, 0.010}, 8) == Approx(0.009));  // noise
  CHECK(seconds_per_batch({1, 0.010, 0.010}, 8) == Approx(0.010));
}

TEST_CASE("the estimate is a table of ranks", "[estimate]") {
  // 1000 samples in batches of 100: 10, 5, 3 (of 250), 2 (of 125) batches an epoch.
  CHECK(estimate_table({2, 0.62, 0.5}, 1000, 100, 5) ==
        "1000 training samples, batches of 100 on each rank; measured: 10 batches\n\n"
        "ranks   batches     time    an epoch     5 epochs   efficiency\n"
        "    1        10 500.0 ms       5.0 s       25.0 s        100 %\n"
        "    2         5 620.0 ms       3.1 s       15.5 s         81 %   measured\n"
        "    4         3 680.0 ms       2.0 s       10.2 s         74 %\n"
        "    8         2 710.0 ms       1.4 s        7.1 s         70 %\n\n"
        "batches: in an epoch, on each rank; time: of one batch. Assumes that more ranks compute\n"
        "as fast as these, and that exchanging gradients costs a ring's share, (ranks - 1) / ranks.\n"
        "Leaves out validation, tests and checkpoints.\n");
  CHECK_THAT(
      estimate_table({1, 1200, 1200}, 1000, 100, 5),
      ContainsSubstring("    1        10   20 min       3.3 h       16.7 h        100 %   measured\n") &&
          ContainsSubstring("One rank exchanges nothing"));
}
