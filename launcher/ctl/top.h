#pragma once

#include <string>

namespace ddprun::launcher {

/// Shows a job until the user leaves or the job ends: one screen, refreshed every `interval` seconds. returns
/// the exit code
int show_top(const std::string& job, double interval);

}  // namespace ddprun::launcher
