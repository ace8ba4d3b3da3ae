#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "common/files.h"
#include "tests/support/catch.h"

namespace ddprun::test {

/// What a shell's command prints, "failed: " before it if it fails.
inline std::string shell_output(const std::string& command) {
  std::string output;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) output.push_back(static_cast<char>(c));
  return ::pclose(pipe) == 0 ? output : "failed: " + output;
}

/// Runs the Python script in the folder and checks that it does not fail. Skips the test without a Python
/// ($DDPRUN_TEST_PYTHON, else python3) that has the module.
inline void check_python(const std::filesystem::path& folder, const std::string& module,
                         const std::string& script) {
  const char* named = std::getenv("DDPRUN_TEST_PYTHON");
  const std::string program = named != nullptr ? named : "python3";
  if (shell_output(program + " -c 'import " + module + "'").starts_with("failed: "))
    skip("no Python with " + module + " (DDPRUN_TEST_PYTHON)");
  write_file_atomic(folder / "check.py", script + "\nprint('agreed')\n");
  const auto output = shell_output("cd '" + folder.string() + "' && " + program + " check.py");
  INFO(output);
  CHECK(output.ends_with("agreed\n"));
}

}  // namespace ddprun::test
