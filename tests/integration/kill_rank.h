#pragma once

#include <sys/types.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include <ddprun/common/files.h>

namespace ddprun::test {

/// Kills the worker of this rank, if it has started according to --events-json. (kill(-1) would hit
/// everybody.)
inline void kill_rank(const std::filesystem::path& events, int rank) {
  std::istringstream lines(std::filesystem::exists(events) ? read_file(events) : "");
  pid_t pid = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (event.is_object() && event["event"] == "started" && event["rank"] == rank)
      pid = event["pid"].get<pid_t>();
  }
  if (pid > 0) ::kill(pid, SIGKILL);
}

}  // namespace ddprun::test
