#pragma once

#include <string>
#include <vector>

#include "worker/commands/commands.h"
#include "worker/tasks/registry.h"

namespace ddprun::test {

/// What the program worker makes of these words.
inline worker::Config parse(const std::vector<std::string>& words) {
  std::vector<const char*> arguments = {"worker"};
  for (const auto& word : words) arguments.push_back(word.c_str());
  return worker::parse_config(static_cast<int>(arguments.size()), arguments.data(), worker::all_tasks(),
                              worker::all_commands());
}

}  // namespace ddprun::test
