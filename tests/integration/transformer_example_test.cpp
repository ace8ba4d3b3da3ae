// examples/transformer.cpp: its weights, its figures and its end survive lost ranks and restarts.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/report/metric_sink.h>
#include "tests/integration/job.h"
#include "tests/integration/kill_rank.h"

using namespace ddprun;
using namespace ddprun::test;
using namespace std::chrono_literals;

namespace {

namespace fs = std::filesystem;

constexpr auto kExample = 120s;  // far more than it takes

/// The example in a folder of its own, on two ranks.
Command transformer(const fs::path& folder, const std::vector<std::string>& words = {}) {
  fs::create_directories(folder);
  auto command = ddprun_command({"--nproc-per-node=2", "--recover=rank", "--max-restarts=5",
                                 "--events-json=" + (folder / "events.json").string(), TRANSFORMER_PROGRAM});
  command.argv.insert(command.argv.end(), words.begin(), words.end());
  command.in_child = [folder] {
    if (::chdir(folder.c_str()) != 0) ::_exit(2);
  };
  return command;
}

/// A figure's values, in the order of metrics.csv.
std::vector<double> figures(const fs::path& folder, const std::string& name) {
  std::vector<double> values;
  if (fs::exists(folder / "metrics.csv"))
    for (const auto& row : report::read_metrics_csv(folder / "metrics.csv"))
      for (const auto& [column, value] : row)
        if (column == name) values.push_back(value);
  return values;
}

bool wait_for_steps(const fs::path& folder, std::size_t steps) {
  return wait_until([&] { return figures(folder, "train_loss").size() >= steps; }, kExample);
}

}  // namespace

TEST_CASE("the transformer ends with the same weights and figures after lost ranks and a restart",
          "[own_program]") {
  const TempDir dir;
  const auto whole = dir.path() / "whole", killed = dir.path() / "killed",
             restarted = dir.path() / "restarted";
  Child undisturbed(transformer(whole));
  REQUIRE(undisturbed.wait(kExample) == ExitStatus::exited(0));
  const auto losses = figures(whole, "val_loss");
  REQUIRE(losses.size() >= 4);
  CHECK(losses.back() < losses.front() / 2);
  std::vector<double> steps;  // each has a row, and so has each validation
  for (std::size_t epoch = 0, step = 0; epoch < losses.size(); ++epoch) {
    const auto per_epoch = figures(whole, "train_loss").size() / losses.size();
    for (std::size_t i = 0; i < per_epoch; ++i) steps.push_back(static_cast<double>(++step));
    steps.push_back(static_cast<double>(step));
  }
  CHECK(figures(whole, "step") == steps);

  Child child(transformer(killed));
  for (const int rank : {1, 0}) {
    REQUIRE(wait_for_steps(killed, rank == 1 ? 5 : 15));
    kill_rank(killed / "events.json", rank);
    REQUIRE(child.wait_for_output("a lost rank was replaced", rank == 1 ? 1 : 2, kExample));
  }
  REQUIRE(child.wait(kExample) == ExitStatus::exited(0));
  CAPTURE(child.out(), child.err());
  CHECK(child.err().find("restarting all") == std::string::npos);
  CHECK((read_file(killed / "transformer.pt") == read_file(whole / "transformer.pt")));
  CHECK(read_file(killed / "metrics.csv") == read_file(whole / "metrics.csv"));

  {
    Child first(transformer(restarted));
    REQUIRE(first.wait_for_output("epoch 2:", 1, kExample));
    REQUIRE(wait_for_steps(restarted, steps.size() / losses.size() * 2 + 1));  // beyond the checkpoint
    first.send_signal(SIGKILL);
    first.wait();
    check_nothing_left(first);
  }
  Child second(transformer(restarted));
  REQUIRE(second.wait(kExample) == ExitStatus::exited(0));
  CHECK_THAT(second.out(), !ContainsSubstring("epoch 1:"));
  CHECK((read_file(restarted / "transformer.pt") == read_file(whole / "transformer.pt")));
  CHECK(read_file(restarted / "metrics.csv") == read_file(whole / "metrics.csv"));
}

TEST_CASE("the transformer's early stop stays stopped when it is started again", "[own_program]") {
  const TempDir dir;
  const auto text = dir.path() / "text.txt", folder = dir.path() / "run";
  // The first tenth, for validation, has a byte that the rest does not have.
  write_file_atomic(text, std::string(400, 'b') + std::string(3600, 'a'));
  Child first(transformer(folder, {text.string()}));
  const auto status = first.wait(kExample);
  CAPTURE(first.out(), first.err());
  REQUIRE(status == ExitStatus::exited(0));
  CHECK_THAT(first.out(), ContainsSubstring("epoch 3:") && !ContainsSubstring("epoch 12:"));
  const auto metrics = read_file(folder / "metrics.csv"), checkpoint = read_file(folder / "transformer.pt");

  Child second(transformer(folder, {text.string()}));
  REQUIRE(second.wait(kExample) == ExitStatus::exited(0));
  CHECK(second.out() == "the training has finished: remove transformer.pt to begin again\n");
  CHECK(read_file(folder / "metrics.csv") == metrics);
  CHECK((read_file(folder / "transformer.pt") == checkpoint));
}

TEST_CASE("the transformer names a text that it cannot use", "[own_program]") {
  const TempDir dir;
  Child child(transformer(dir.path() / "run", {"nowhere.txt"}));
  CHECK(child.wait(kExample) == ExitStatus::exited(2));
  CHECK_THAT(child.err(), ContainsSubstring("nowhere.txt: expected a file of 1000 bytes or more"));
}
