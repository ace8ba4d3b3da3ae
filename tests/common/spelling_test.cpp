#include <ddprun/common/spelling.h>

#include "tests/support/catch.h"

namespace ddprun {
namespace {

TEST_CASE("a flag of several words gets both spellings", "[spelling]") {
  CHECK(both_spellings("--batch-size") == "--batch-size,--batch_size");
  CHECK(both_spellings("--a-b-c") == "--a-b-c,--a_b_c");
}

TEST_CASE("a flag of one word, or a short one, stays as it is", "[spelling]") {
  CHECK(both_spellings("--seed") == "--seed");
  CHECK(both_spellings("-t") == "-t");
}

TEST_CASE("each of several names gets its own spelling", "[spelling]") {
  CHECK(both_spellings("--help,-h") == "--help,-h");
  CHECK(both_spellings("-t,--tee-all") == "-t,--tee-all,--tee_all");
}

}  // namespace
}  // namespace ddprun
