#include "worker/commands/commands.h"

#include <string_view>

#include "worker/commands/flight_report.h"
#include "worker/sam/predict_command.h"

namespace ddprun::worker {

std::optional<int> run_command(int argc, char** argv) {
  if (argc < 2) return std::nullopt;
  const std::string_view name = argv[1];
  --argc, ++argv;
  if (name == "env") return run_env_command(argc, argv);
  if (name == "export") return run_export_command(argc, argv);
  if (name == "flight") return run_flight_report(argc, argv);
  if (name == "sam" && sam::wants_prediction(argc, argv)) return sam::run_predict_command(argc, argv);
  return std::nullopt;
}

}  // namespace ddprun::worker
