#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "common/files.h"
#include "tests/support/catch.h"

namespace ddprun::test {

inline c10::impl::GenericDict make_dict() {
  return c10::impl::GenericDict(c10::StringType::get(), c10::AnyType::get());
}

/// Equal values, kinds and order.
inline bool same(const c10::IValue& a, const c10::IValue& b) {
  if (a.tagKind() != b.tagKind()) return false;
  if (a.isTensor())
    return a.toTensor().scalar_type() == b.toTensor().scalar_type() && a.toTensor().equal(b.toTensor());
  if (a.isTuple()) {
    const auto& left = a.toTupleRef().elements();
    const auto& right = b.toTupleRef().elements();
    return std::equal(left.begin(), left.end(), right.begin(), right.end(), same);
  }
  if (a.isList()) {
    const auto left = a.toListRef();
    const auto right = b.toListRef();
    return std::equal(left.begin(), left.end(), right.begin(), right.end(), same);
  }
  if (!a.isGenericDict()) return a == b;
  const auto left = a.toGenericDict();
  const auto right = b.toGenericDict();
  return std::equal(left.begin(), left.end(), right.begin(), right.end(), [](const auto& x, const auto& y) {
    return same(x.key(), y.key()) && same(x.value(), y.value());
  });
}

inline std::string shell(const std::string& command) {
  std::string output;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) output.push_back(static_cast<char>(c));
  return ::pclose(pipe) == 0 ? output : "failed: " + output;
}

/// A Python with PyTorch; skips the test if there is none.
inline std::string python() {
  const char* named = std::getenv("DDPRUN_TEST_PYTHON");
  const std::string program = named != nullptr ? named : "python3";
  if (!shell(program + " -c 'import torch'").empty())
    ddprun::test::skip("no Python with torch (DDPRUN_TEST_PYTHON)");
  return program;
}

inline void check_python(const std::filesystem::path& folder, const std::string& script) {
  const auto program = python();
  write_file_atomic(folder / "check.py", "import torch\n" + script + "\nprint('agreed')\n");
  CHECK(shell("cd '" + folder.string() + "' && " + program + " check.py") == "agreed\n");
}

}  // namespace ddprun::test
