#include "worker/commands/commands.h"

#include <string_view>

#include "worker/commands/env_command.h"
#include "worker/commands/export_command.h"
#include "worker/commands/flight_report.h"
#include "worker/sam/predict_command.h"

namespace ddprun::worker {
namespace {

struct Command {
  std::string_view name;
  int (*run)(int argc, char** argv);  ///< argv[0] is the command's name
};

constexpr Command kCommands[] = {
    {"env", run_env_command},
    {"export", run_export_command},
    {"flight", run_flight_report},
};

}  // namespace

std::optional<int> run_command(int argc, char** argv) {
  if (argc < 2) return std::nullopt;
  for (const auto& command : kCommands)
    if (argv[1] == command.name) return command.run(argc - 1, argv + 1);
  if (argv[1] == std::string_view("sam") && wants_prediction(argc - 1, argv + 1))
    return run_predict_command(argc - 1, argv + 1);
  return std::nullopt;
}

}  // namespace ddprun::worker
