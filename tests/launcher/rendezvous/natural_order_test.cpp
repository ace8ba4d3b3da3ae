#include "launcher/rendezvous/natural_order.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

TEST_CASE("natural order is that of people", "[natural_order]") {
  const std::vector<std::string> sorted = {"",
                                           "-1",
                                           "0",
                                           "00",
                                           "1",
                                           "01",
                                           "2",
                                           "10",
                                           "a",
                                           "a0",
                                           "a1",
                                           "a01",
                                           "a1b",
                                           "a1b2",
                                           "a1b10",
                                           "a2",
                                           "a10",
                                           "a99999999999999999999999998",
                                           "a99999999999999999999999999",
                                           "a100000000000000000000000000",
                                           "b",
                                           "n1-r2",
                                           "n1-r10",
                                           "n2-r1",
                                           "node2",
                                           "node10.x"};
  for (std::size_t i = 0; i < sorted.size(); ++i)
    for (std::size_t j = 0; j < sorted.size(); ++j) {
      INFO("'" << sorted[i] << "' < '" << sorted[j] << "'");
      CHECK(natural_less(sorted[i], sorted[j]) == (i < j));
    }
}

/// Few letters, so that digits meet digits and names often begin alike.
std::string random_name(std::mt19937& random) {
  static const std::string letters = "00129a-\xff";
  std::string name(random() % 7, ' ');
  for (char& letter : name) letter = letters[random() % letters.size()];
  return name;
}

TEST_CASE("natural order is a strict weak order in which only equal names are equivalent",
          "[natural_order]") {
  const unsigned seed = 20;
  std::mt19937 random(seed);
  for (int i = 0; i < 100'000; ++i) {
    const std::string a = random_name(random), b = random_name(random), c = random_name(random);
    const bool ab = natural_less(a, b), ba = natural_less(b, a), bc = natural_less(b, c);
    const bool holds = (ab != ba || a == b) && !(ab && ba) && (!(ab && bc) || natural_less(a, c));
    INFO("'" << a << "', '" << b << "', '" << c << "', triple " << i << " of seed " << seed);
    if (!holds) FAIL("no strict weak order");
  }
}

}  // namespace
}  // namespace ddprun::launcher
