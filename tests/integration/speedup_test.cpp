// scripts/speedup.sh, which trains on several numbers of ranks, and scripts/speedup.py, which compares the
// runs.
#include <fstream>
#include <regex>

#include <ddprun/common/files.h>
#include "tests/integration/training_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

Command speedup_script(const fs::path& out, const std::vector<std::string>& words) {
  Command command{{DDPRUN_SOURCE_DIR "/scripts/speedup.sh"}};
  command.argv.insert(command.argv.end(), words.begin(), words.end());
  command.env = {{"SPEEDUP_BIN", fs::path(WORKER_PROGRAM).parent_path().string()},
                 {"SPEEDUP_OUT", out.string()}};
  return command;
}

Command speedup(const std::vector<fs::path>& runs) {
  Command command{{DDPRUN_SOURCE_DIR "/scripts/speedup.py"}};
  for (const auto& run : runs) command.argv.push_back(run.string());
  return command;
}

/// A folder with what is read of a run.
fs::path write_run(const fs::path& folder, const std::string& task, int ranks, double seconds,
                   double samples_per_second) {
  fs::create_directories(folder);
  std::ofstream(folder / "summary.json") << nlohmann::json{{"task", task},
                                                           {"world_size", ranks},
                                                           {"seconds", seconds},
                                                           {"samples_per_second", samples_per_second}};
  return folder;
}

void check_one_line(const Command& command, int status, const std::string& text) {
  Child child(command);
  CHECK(child.wait() == ExitStatus::exited(status));
  CHECK_THAT(child.err(), ContainsSubstring(text));
  CHECK(count_of("\n", child.err()) == 1);
  CHECK(child.out().empty());
}

}  // namespace

TEST_CASE("speedup.sh trains on each number of ranks and compares them", "[speedup]") {
  const TempDir dir;
  const auto out = dir.path() / "out";
  Child child(speedup_script(out, {"linear", "2", "1", "--", "--epochs", "2"}));
  const auto status = child.wait(kTraining);
  CAPTURE(child.err());
  REQUIRE(status == ExitStatus::exited(0));
  const std::regex row(R"(\| (\d+) \| (\d+\.\d\d) \| \d+ \| (\d+\.\d\d) \| (\d+) % \|)");
  const std::string table = child.out();
  std::vector<std::smatch> rows(std::sregex_iterator(table.begin(), table.end(), row), {});
  REQUIRE(rows.size() == 2);
  for (int ranks = 1; ranks <= 2; ++ranks) {
    const auto& cells = rows[static_cast<std::size_t>(ranks - 1)];
    const auto summary = read_summary(out / std::to_string(ranks));
    CHECK(cells[1] == std::to_string(ranks));
    CHECK(summary["world_size"] == ranks);
    CHECK(summary["epochs"] == 2);
    CHECK(std::stod(cells[2]) == Approx(summary["seconds"].get<double>()).margin(0.006));
    CHECK(std::stod(cells[4]) == Approx(100 * std::stod(cells[3]) / ranks).margin(1.1));
  }
  CHECK(rows[0][3] == "1.00");
  const auto picture = read_file(out / "speedup.svg");
  CHECK(picture.starts_with("<svg "));
  CHECK_THAT(picture, ContainsSubstring("width=\"800\" height=\"480\"") &&
                          ContainsSubstring("prefers-color-scheme: dark"));
  CHECK(count_of("<rect ", picture) == 1 + 4);  // the ground; of each run its speed-up and its efficiency
  for (const auto& cells : rows) {
    CHECK_THAT(picture, ContainsSubstring(">" + cells[3].str() + "</text>"));
    CHECK_THAT(picture, ContainsSubstring(">" + cells[4].str() + " %</text>"));
  }
  CHECK(count_of("stroke-dasharray=\"6 4\"", picture) == 1 + 4);  // the ideals
  CHECK(count_of("class=\"grid\"", picture) >= 6);
}

TEST_CASE("speedup.py compares with the run of the fewest ranks", "[speedup]") {
  const TempDir dir;
  const auto four = write_run(dir.path() / "a", "mnist", 4, 2.5, 360);
  const auto two = write_run(dir.path() / "b", "mnist", 2, 4.25, 200);
  Child child(speedup({four, two}));
  REQUIRE(child.wait() == ExitStatus::exited(0));
  CHECK(child.out() ==
        "| ranks | whole job, s | samples/s | speed-up | efficiency |\n|---|---|---|---|---|\n"
        "| 2 | 4.25 | 200 | 1.00 | 100 % |\n| 4 | 2.50 | 360 | 1.80 | 90 % |\n");
  const auto other = write_run(dir.path() / "c", "toy", 8, 1, 700);
  check_one_line(speedup({two, other}), 2, "expected runs of one task, got mnist and toy");
  check_one_line(speedup({two, four, two}), 2, "got two runs of 2 ranks");
  check_one_line(speedup({}), 2, "RUN_FOLDER is required");
  check_one_line(speedup({dir.path() / "none"}), 1, "none/summary.json: ");
  std::ofstream(other / "summary.json") << "{}";
  check_one_line(speedup({other}), 1, "c/summary.json: expected the summary of a run");
}

TEST_CASE("speedup.sh says what is wrong with its arguments before it trains", "[speedup]") {
  const TempDir dir;
  const auto out = dir.path() / "out";
  check_one_line(speedup_script(out, {}), 2, "expected TASK and numbers of ranks");
  check_one_line(speedup_script(out, {"linear"}), 2, "got 'linear'");
  check_one_line(speedup_script(out, {"linear", "1", "two"}), 2, "expected a number of ranks, got 'two'");
  check_one_line(speedup_script(out, {"linear", "--", "1"}), 2, "expected numbers of ranks before --");
  CHECK_FALSE(fs::exists(out));
}
