#include "launcher/job/attempt.h"

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using Seen = std::vector<std::optional<ErrorSeen>>;

TEST_CASE("the first exit is the root cause unless another's error file was there before", "[root_cause]") {
  CHECK(root_cause(1, Seen(3)) == 1);
  CHECK(root_cause(1, {{}, {}, ErrorSeen{0, 9}}) == 2);
  CHECK(root_cause(1, {{}, ErrorSeen{0, 5}, ErrorSeen{0, 9}}) == 1);
  CHECK(root_cause(1, {{}, ErrorSeen{0, 9}, ErrorSeen{0, 5}}) == 2);
  CHECK(root_cause(1, {ErrorSeen{0, 4}, ErrorSeen{0, 9}, ErrorSeen{0, 5}}) == 0);
}

TEST_CASE("of error files written at the same time the first exit's counts", "[root_cause]") {
  CHECK(root_cause(1, {ErrorSeen{7, 9}, ErrorSeen{7, 9}}) == 1);
}

TEST_CASE("the workers' own seconds come before the file system's time, which decides within a second",
          "[root_cause]") {
  CHECK(root_cause(0, {ErrorSeen{7, 1}, ErrorSeen{6, 2}}) == 1);
  CHECK(root_cause(0, {ErrorSeen{7, 2}, ErrorSeen{7, 1}}) == 1);
  CHECK(root_cause(0, {ErrorSeen{7, 2}, ErrorSeen{0, 1}}) == 1);  // it does not say when
  CHECK(root_cause(0, {ErrorSeen{7, 1}, ErrorSeen{0, 2}}) == 0);
}

TEST_CASE("a worker that has lived on for long after its error is not waited for", "[root_cause]") {
  CHECK(may_exit_soon({100, 1}, 110));
  CHECK_FALSE(may_exit_soon({100, 1}, 111));
  CHECK(may_exit_soon({200, 1}, 100));  // the clock was set back
  CHECK(may_exit_soon({0, 1}, 100));    // it does not say when
}

}  // namespace
}  // namespace ddprun::launcher
