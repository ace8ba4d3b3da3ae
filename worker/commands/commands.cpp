#include "worker/commands/commands.h"

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/settings/command.h>
#include <ddprun/train/record/run_report.h>
#include "worker/commands/flight_report.h"
#include "worker/config/kept_checkpoints.h"

namespace ddprun::worker {

const std::vector<CommandEntry>& all_commands() {
  static const std::vector<CommandEntry> commands = {
      {"advise", "RUN", "check a run against good habits, and print a line for each flag to change",
       run_advise_command},
      {"env", "",
       "show ranks, devices and libraries as a training run would find them here, and what is wrong",
       run_env_command},
      {"export", "CHECKPOINT OUT", "write a model's weights for other programs", run_export_command},
      {"flight", "FOLDER", "compare the ranks' flight records after a hang or crash", run_flight_report},
      {"prune", "RUN", "remove all checkpoints of a run but the newest and the best", run_prune_command},
      {"report", "RUN...", "write a run's page again, or compare runs on one page", run_report_command},
      {"runs", "FOLDER...", "list the runs in a folder, or a run's checkpoints", run_runs_command},
      {"TASK --predict", "FILE...", "print the classes of pictures or rows; for sam, write an object's mask",
       run_predict_command},
  };
  return commands;
}

int run_report_command(int argc, char** argv) {
  std::vector<std::string> runs;
  std::filesystem::path out = "comparison.html";
  settings::Command command;
  command.name = "worker report";
  command.description =
      "writes a run's page again, or compares runs on one page: overlays their curves and lists the settings "
      "that differ.";
  command.positionals = {{"runs", "RUN..."}};
  command.settings = {
      settings::help_flag(),
      settings::list("runs", runs, "the runs' folders, or a folder of runs").not_a_flag(),
      settings::path("out", out, "the page to write"),
  };
  if (!apply_words({argv + 1, argv + argc}, command)) return 0;
  std::vector<std::filesystem::path> folders;
  for (const std::filesystem::path run : runs) {
    if (is_run_folder(run) || !std::filesystem::is_directory(run)) {
      folders.push_back(run);
      continue;
    }
    for (const auto& one : runs_in(run))  // without those of an evaluation
      if (std::filesystem::exists(one / "metrics.csv")) folders.push_back(one);
  }
  if (folders.empty()) throw IoError(runs.front(), "holds no run with metrics.csv");
  if (out.filename() != "report.html") check_not_of_a_run(out, "--out: expected the page");
  if (folders.size() == 1)
    train::write_run_report(folders[0], out);
  else
    train::write_comparison(folders, out);
  std::cout << "report: " << out.string() << "\n";
  return 0;
}

}  // namespace ddprun::worker
