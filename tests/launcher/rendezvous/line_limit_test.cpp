#include "launcher/rendezvous/server.h"

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;

TEST_CASE("of many lines the first few are logged, then one per pause that counts the others",
          "[line_limit]") {
  LineLimit limit;
  LineLimit::Time now = LineLimit::Time() + 1h;
  int logged = 0;
  for (int i = 0; i < 1000; ++i) logged += limit.pass("bad frame", now).has_value();
  CHECK(logged == LineLimit::kFirst);
  now += LineLimit::kPause - 1ms;
  CHECK_FALSE(limit.pass("bad frame", now));
  CHECK_FALSE(limit.pass_rest(now));
  now += 1ms;
  CHECK(limit.pass("bad frame", now) == "bad frame; before it 996 such lines were left out");
  CHECK_FALSE(limit.pass("bad frame", now));
  CHECK_FALSE(limit.pass_rest(now));
  now += LineLimit::kPause;
  CHECK(limit.pass_rest(now) == "1 such lines were left out");
  now += 1h;
  CHECK_FALSE(limit.pass_rest(now));
}

TEST_CASE("lines that come seldom are all logged as they are", "[line_limit]") {
  LineLimit limit;
  LineLimit::Time now = LineLimit::Time() + 1h;
  for (int i = 0; i < 100; ++i, now += LineLimit::kPause) CHECK(limit.pass("bad frame", now) == "bad frame");
  now += 1h;
  for (int i = 0; i < LineLimit::kFirst; ++i) CHECK(limit.pass("bad frame", now) == "bad frame");
}

}  // namespace
}  // namespace ddprun::launcher
