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

/// Ends the running test case as skipped (ctest: SKIP_RETURN_CODE 4), saying why. For tests that want
/// something that a machine may lack, such as optional data; every test case is a process of its own under
/// ctest.
[[noreturn]] inline void skip(const std::string& why) {
  std::cout << "skipped: " << why << std::endl;
  std::_Exit(4);
}

}  // namespace ddprun::test
