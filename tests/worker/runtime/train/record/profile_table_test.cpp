#include <ddprun/train/record/profile_table.h>

#include "tests/support/catch.h"

namespace ddprun::train {
namespace {

using test::ContainsSubstring;

TEST_CASE("an operator's own time is without what runs within it", "[profile_table]") {
  const auto times = operator_times({{"aten::linear", 1, 0, 100},
                                     {"aten::addmm", 1, 10, 90},
                                     {"aten::copy_", 1, 20, 30},
                                     {"aten::copy_", 1, 30, 35},
                                     {"aten::copy_", 2, 20, 60},  // beside it, on another thread
                                     {"aten::linear", 1, 100, 110}});
  REQUIRE(times.size() == 3);
  CHECK(times[0].name == "aten::addmm");
  CHECK(times[0].self_ns == 65);
  CHECK(times[0].total_ns == 80);
  CHECK(times[1].name == "aten::copy_");
  CHECK(times[1].self_ns == 55);
  CHECK(times[1].calls == 3);
  CHECK(times[2].name == "aten::linear");
  CHECK(times[2].self_ns == 30);
  CHECK(times[2].total_ns == 110);
  CHECK(times[2].calls == 2);
  CHECK(operator_times({}).empty());
}

TEST_CASE("the table tells where the steps' time went", "[profile_table]") {
  const auto text =
      profile_table({.steps = 4, .total = 0.8, .data_wait = 0.08, .communication = 0.2, .overlap = 0.15},
                    {{"aten::addmm", 300000000, 310000000, 40}, {"aten::relu", 100000000, 100000000, 8}});
  CHECK_THAT(text, ContainsSubstring("4 steps, each 200.000 ms on average"));
  CHECK_THAT(text, ContainsSubstring("waiting for data       20.000 ms   10.0 % of the step"));
  CHECK_THAT(text, ContainsSubstring("communication          50.000 ms   25.0 % of the step"));
  CHECK_THAT(text, ContainsSubstring("beside backward      37.500 ms   75.0 % of communication"));
  CHECK_THAT(text, ContainsSubstring("     300.000    75.0     310.000        40  aten::addmm"));
  CHECK(text.find("GPU") == std::string::npos);
}

TEST_CASE("a long table ends, and one of nothing is empty", "[profile_table]") {
  std::vector<OperatorTime> many;
  for (int i = 0; i < 30; ++i) many.push_back({"operator " + std::to_string(i) + ".", 1000, 1000, 1});
  const auto text = profile_table({}, many);
  CHECK_THAT(text, ContainsSubstring("operator 19."));
  CHECK(text.find("operator 20.") == std::string::npos);
  CHECK_THAT(text, ContainsSubstring("and 10 more"));
  CHECK(profile_table({}, {}).empty());
}

}  // namespace
}  // namespace ddprun::train
