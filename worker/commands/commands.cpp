#include "worker/commands/commands.h"

#include "worker/commands/flight_report.h"
#include "worker/sam/sam_model.h"

namespace ddprun::worker {

const std::vector<CommandEntry>& all_commands() {
  static const std::vector<CommandEntry> commands = {
      {"env", "", "show ranks, devices and libraries as a training would find them here, and what is wrong",
       run_env_command},
      {"export", "CHECKPOINT OUT", "write a model's weights for other programs", run_export_command},
      {"flight", "FOLDER", "compare the ranks' flight records after a hang or crash", run_flight_report},
      {"prune", "RUN", "remove a run's checkpoints but the newest and the best", run_prune_command},
      {"report", "RUN...", "write a run's page again, or compare runs on one", run_report_command},
      {"runs", "FOLDER...", "list the runs in a folder, or a run's checkpoints", run_runs_command},
      {"sam --predict", "IMAGE ...", "write the mask of the object at a point", sam::run_predict_command},
  };
  return commands;
}

}  // namespace ddprun::worker
