#include "worker/commands/commands.h"

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <ddprun/common/settings/command.h>
#include <ddprun/train/record/run_report.h>

namespace ddprun::worker {

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
      settings::list("runs", runs, "their folders").not_a_flag(),
      settings::path("out", out, "the page to write"),
  };
  if (!apply_words({argv + 1, argv + argc}, command)) return 0;
  if (runs.size() == 1)
    train::write_run_report(runs[0], out);
  else
    train::write_comparison({runs.begin(), runs.end()}, out);
  std::cout << "report: " << out.string() << "\n";
  return 0;
}

}  // namespace ddprun::worker
