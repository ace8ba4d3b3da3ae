#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace ddprun::test {

/// The output of a shell command, after "failed: " if it fails.
inline std::string shell_output(const std::string& command) {
  std::string output;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) output.push_back(static_cast<char>(c));
  return ::pclose(pipe) == 0 ? output : "failed: " + output;
}

/// The Python in $DDPRUN_TEST_PYTHON (scripts/setup.sh --python makes one). Skips the test without it, or
/// without the module in it, but not if the module is broken.
inline std::string python_with(const std::string& module) {
  const char* named = std::getenv("DDPRUN_TEST_PYTHON");
  if (named == nullptr || *named == '\0') skip("DDPRUN_TEST_PYTHON names no Python with " + module);
  const std::string find =
      " -c 'import importlib.util as u; raise SystemExit(u.find_spec(\"" + module + "\") is None)'";
  if (shell_output("'" + std::string(named) + "'" + find).starts_with("failed: "))
    skip("the Python that DDPRUN_TEST_PYTHON names has no " + module);
  return named;
}

/// Runs the Python script in the folder and checks that it succeeds; skips like python_with().
inline void check_python(const std::filesystem::path& folder, const std::string& module,
                         const std::string& script) {
  const auto program = python_with(module);
  write_file_atomic(folder / "check.py", script + "\nprint('agreed')\n");
  const auto output = shell_output("cd '" + folder.string() + "' && '" + program + "' check.py");
  INFO(output);
  CHECK(output.ends_with("agreed\n"));
}

}  // namespace ddprun::test
