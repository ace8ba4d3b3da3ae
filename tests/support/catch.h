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

/// For the test program's main: a test case was skipped.
inline bool test_was_skipped = false;

/// Ends the running test case as skipped, saying why, in good order: what it has made is unmade. For tests
/// that want something that a machine may lack, such as optional data. A program of which a test case was
/// skipped, and none failed, exits with 4 (ctest: SKIP_RETURN_CODE); under ctest every test case is a process
/// of its own.
[[noreturn]] inline void skip(const std::string& why) {
  test_was_skipped = true;
#ifdef SKIP
  SKIP(why);
  std::abort();  // not reached
#else
  std::cout << "skipped: " << why << std::endl;
  throw Catch::TestFailureException();  // Catch2 2 ends the test case and counts no failure
#endif
}

}  // namespace ddprun::test
