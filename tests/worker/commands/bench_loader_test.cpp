#include "worker/commands/bench_loader.h"

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::worker;
using ddprun::test::ContainsSubstring;

namespace {

/// What the command prints.
std::string run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "bench-loader");
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  std::ostringstream text;
  auto* const before = std::cout.rdbuf(text.rdbuf());
  int exit_code = -1;
  try {
    exit_code = run_bench_loader(static_cast<int>(argv.size()), argv.data());
  } catch (...) {
    std::cout.rdbuf(before);
    throw;
  }
  std::cout.rdbuf(before);
  CHECK(exit_code == 0);
  return text.str();
}

}  // namespace

TEST_CASE("bench-loader measures the input pipeline and prints a line of JSON", "[bench_loader]") {
  const TempDir dir;
  for (int i = 1; i <= 5; ++i)
    std::ofstream(dir.path() / ("data_batch_" + std::to_string(i) + ".bin"), std::ios::binary)
        << std::string(40 * 3073, '\1');
  const auto line = run({"cifar10", "--data", dir.path().string(), "--loader-threads=3", "--batch_size", "16",
                         "--epochs", "2", "--channels-last"});
  const auto figures = nlohmann::ordered_json::parse(line);
  std::vector<std::string> keys;
  for (const auto& [key, value] : figures.items()) keys.push_back(key);
  CHECK(keys == std::vector<std::string>{"task", "world", "seconds", "cpu_seconds", "peak_mb", "workers",
                                         "images_per_second"});
  CHECK(figures["task"] == "cifar10-loader");
  CHECK(figures["workers"] == 3);
  CHECK(figures["images_per_second"].get<std::int64_t>() > 0);
  CHECK(line.back() == '\n');
}

TEST_CASE("bench-loader refuses what it does not know", "[bench_loader]") {
  CHECK_THROWS_AS(run({}), UsageError);
  CHECK_THROWS_WITH(run({"sam"}), "unknown task 'sam', expected cifar10 or mnist");
  CHECK_THROWS_WITH(run({"mnist", "--loader-threads", "-1"}), ContainsSubstring("--loader-threads"));
  CHECK_THROWS_AS(run({"cifar10", "--data", "/no/such"}), IoError);
  CHECK_THAT(run({"--help"}), ContainsSubstring("--loader-threads"));
}
