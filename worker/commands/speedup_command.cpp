#include "worker/commands/speedup_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/image/line_chart.h>
#include <ddprun/image/png.h>
#include "worker/config/flags.h"

namespace ddprun::worker {
namespace {

namespace fs = std::filesystem;

struct SpeedupFlags {
  std::vector<fs::path> runs;
  fs::path picture;
};

struct Run {
  std::string task;
  int ranks;
  double seconds;             ///< of the whole job
  double samples_per_second;  ///< of the training alone
};

/// False if only help was asked for.
bool parse_speedup_flags(int argc, char** argv, SpeedupFlags& flags) {
  CLI::App app("Compares runs of one training on different numbers of ranks.", "worker speedup");
  app.add_option("RUN_FOLDER", flags.runs, "folders with a summary.json")->required();
  app.add_option("--picture", flags.picture, "draw it as a PNG file")->type_name("FILE");
  return parse_or_help(app, argc, argv);
}

Run read_run(const fs::path& folder) {
  const auto path = folder / "summary.json";
  try {
    const auto summary = nlohmann::json::parse(read_file(path));
    return {summary.at("task"), summary.at("world_size"), summary.at("seconds"),
            summary.at("samples_per_second")};
  } catch (const nlohmann::json::exception&) {
    throw IoError(path, "expected the summary of a run");
  }
}

std::vector<Run> read_runs(const std::vector<fs::path>& folders) {
  std::vector<Run> runs;
  for (const auto& folder : folders) runs.push_back(read_run(folder));
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.ranks < b.ranks; });
  for (std::size_t i = 1; i < runs.size(); ++i) {
    if (runs[i].task != runs[0].task)
      throw UsageError("speedup: expected runs of one task, got " + runs[0].task + " and " + runs[i].task);
    if (runs[i].ranks == runs[i - 1].ranks)
      throw UsageError("speedup: got two runs of " + std::to_string(runs[i].ranks) + " ranks");
  }
  return runs;
}

void draw(const std::vector<Run>& runs, const fs::path& path) {
  image::Series measured{"measured", {}, {}}, ideal{"ideal", {}, {}};
  for (const auto& run : runs) {
    measured.x.push_back(run.ranks);
    measured.y.push_back(run.samples_per_second / runs[0].samples_per_second);
    ideal.x.push_back(run.ranks);
    ideal.y.push_back(static_cast<double>(run.ranks) / runs[0].ranks);
  }
  image::LineChart chart;
  chart.title = runs[0].task + ": speed-up";
  chart.x_label = "ranks";
  chart.y_label = "times as fast as " + std::to_string(runs[0].ranks);
  chart.series = {measured, ideal};
  chart.integer_x = true;
  image::write_png(path, image::draw_line_chart(chart));
}

}  // namespace

int run_speedup_command(int argc, char** argv) {
  SpeedupFlags flags;
  if (!parse_speedup_flags(argc, argv, flags)) return 0;
  const auto runs = read_runs(flags.runs);
  std::cout << "| ranks | whole job, s | samples/s | speed-up | efficiency |\n|---|---|---|---|---|\n";
  for (const auto& run : runs) {
    const double speedup = run.samples_per_second / runs[0].samples_per_second;
    char line[160];
    std::snprintf(line, sizeof line, "| %d | %.2f | %.0f | %.2f | %.0f %% |\n", run.ranks, run.seconds,
                  run.samples_per_second, speedup, 100 * speedup * runs[0].ranks / run.ranks);
    std::cout << line;
  }
  std::cout << std::flush;
  if (!flags.picture.empty()) draw(runs, flags.picture);
  return 0;
}

}  // namespace ddprun::worker
