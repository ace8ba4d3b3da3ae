#pragma once

// What the tests of the real ddprun with the real worker share.
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include "tests/integration/kill_rank.h"
#include "tests/support/catch.h"
#include "tests/support/child.h"
#include "tests/support/nothing_left.h"
#include "tests/support/python.h"

namespace ddprun::test {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr auto kTraining = 120s;  // far more than a training of these tests takes

inline fs::path fashion_mnist() { return "/usr/share/datasets/fashion-mnist"; }

inline void need_fashion_mnist() {
  if (!fs::exists(fashion_mnist())) skip("Fashion-MNIST (package dataset-fashion-mnist) is not installed");
}

/// shared/PATH beside the repository, where there may be data that no clone has.
inline fs::path beside_the_repository(const std::string& path) {
  return fs::path(DDPRUN_SOURCE_DIR).parent_path() / "shared" / path;
}

/// The program of this build, or the one that the variable names: elsewhere there is no build.
inline std::string program(const char* variable, const char* built) {
  const char* given = std::getenv(variable);
  return given == nullptr ? built : given;
}
inline std::string worker_program() { return program("WORKER_PROGRAM", WORKER_PROGRAM); }

/// ddprun (or with 0 ranks the worker alone) on the MNIST task, with small data unless the flags say
/// otherwise.
inline Command mnist(int ranks, const fs::path& out, const std::vector<std::string>& flags) {
  Command command;
  if (ranks > 0)
    command.argv = {program("DDPRUN_PROGRAM", DDPRUN_PROGRAM), "--nproc-per-node=" + std::to_string(ranks),
                    "--shutdown-timeout=5"};
  for (const std::string& word : {worker_program(), std::string("mnist"), "--out=" + out.string()})
    command.argv.push_back(word);
  command.argv.insert(command.argv.end(), flags.begin(), flags.end());
  return command;
}

/// The same for any task; it reads the golden run's choice of instructions from `environment` if it is given.
inline Command training(const std::string& task, int ranks, const fs::path& out,
                        const std::vector<std::string>& flags, const nlohmann::json& environment = {}) {
  auto command = mnist(ranks, out, {});
  command.argv[command.argv.size() - 2] = task;
  command.argv.insert(command.argv.end(), flags.begin(), flags.end());
  for (const auto& [name, value] : environment.items()) command.env[name] = value.get<std::string>();
  return command;
}

inline std::vector<std::string> small(const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = {"--data=fashion-mnist", "--limit-train=640", "--limit-test=500",
                                    "--batch-size=32", "--epochs=1"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

/// metrics.csv as rows of name -> text; empty cells are left out.
inline std::vector<std::map<std::string, std::string>> read_metrics(const fs::path& out) {
  std::istringstream file(read_file(out / "metrics.csv"));
  const auto split = [](const std::string& line) {
    std::vector<std::string> cells;
    std::istringstream stream(line);
    for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
    return cells;
  };
  std::string line;
  std::getline(file, line);
  const auto names = split(line);
  std::vector<std::map<std::string, std::string>> rows;
  while (std::getline(file, line)) {
    const auto cells = split(line);
    rows.emplace_back();
    for (std::size_t i = 0; i < cells.size(); ++i)
      if (!cells[i].empty()) rows.back()[names.at(i)] = cells[i];
  }
  return rows;
}

/// The values of a metric, row by row, as text: two runs that are equal have equal ones.
inline std::vector<std::string> values_of(const fs::path& out, const std::string& metric) {
  std::vector<std::string> values;
  for (const auto& row : read_metrics(out))
    if (row.count(metric) != 0) values.push_back(row.at(metric));
  return values;
}

/// The weights in a run's last checkpoint, as the bytes of a .safetensors file.
inline std::string weights(const fs::path& out, const std::string& checkpoint = "last.pt") {
  Command command;
  command.argv = {WORKER_PROGRAM, "export", (out / "checkpoints" / checkpoint).string(),
                  (out / "weights.safetensors").string()};
  Child child(command);
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  return read_file(out / "weights.safetensors");
}

inline nlohmann::json read_summary(const fs::path& out) {
  return nlohmann::json::parse(read_file(out / "summary.json"));
}

}  // namespace ddprun::test
