#pragma once

// Catch2 2 (Debian 12) and Catch2 3 (Ubuntu 24.04) under one include.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
namespace ddprun::test {
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
}  // namespace ddprun::test
#else
#include <catch2/catch.hpp>
namespace ddprun::test {
inline auto ContainsSubstring(const std::string& text) { return Catch::Matchers::Contains(text); }
using Catch::Detail::Approx;
}  // namespace ddprun::test
#endif

#include <cstdlib>
#include <iostream>

namespace ddprun::test {

/// Tells the test program's main that a test case was skipped.
inline bool test_was_skipped = false;

/// Skips the rest of the test case by throwing, so destructors run. For tests that need something optional,
/// such as data. If a test case was skipped and none failed, the program exits with 4, ctest's
/// SKIP_RETURN_CODE; ctest runs every test case in its own process.
[[noreturn]] inline void skip(const std::string& why) {
  test_was_skipped = true;
#ifdef SKIP
  SKIP(why);
  std::abort();  // not reached
#else
  std::cout << "skipped: " << why << std::endl;
  throw Catch::TestFailureException();  // Catch2 2 ends the test case and does not count a failure
#endif
}

}  // namespace ddprun::test
