#pragma once

#include <filesystem>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/child.h"

namespace ddprun::test {

/// Ends every test: whatever happened, no process and no file may remain.
inline void check_nothing_left(const Child& ddprun) {
  CHECK(ddprun.nothing_left());
  std::string left;
  for (const auto& entry : std::filesystem::directory_iterator(ddprun.temp_folder())) {
    const auto name = entry.path().filename().string();
    const bool of_sanitizer = name.starts_with("tsan.rodata.");  // where it was killed early
    if (!of_sanitizer) left += name + " ";
  }
  CHECK(left == "");
}

}  // namespace ddprun::test
