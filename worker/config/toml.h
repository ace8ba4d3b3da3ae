#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "worker/config/setting.h"

namespace ddprun::worker {

/// The task that a configuration file is for: its key `task`; empty if it has none. throws as apply_toml()
std::string task_of_toml(const std::filesystem::path& file);

/// Sets what the file sets. It is read whole and refused whole.
///
///   task = "mnist"
///   [train]
///   epochs = 5
///
/// settings  of all tasks; those of another than `task` are refused
/// throws    IoError if it cannot be read; UsageError, "FILE:LINE: ...", for what is no TOML, a section or
///           key that is unknown or is not the task's, a value of another type or out of bounds
void apply_toml(const std::filesystem::path& file, const std::string& task,
                const std::vector<Setting>& settings);

/// The task's settings in TOML, by sections; one that is not set is a comment.
///
/// whole  also those that another run of the same configuration has its own of (--out)
std::string to_toml(const std::string& task, const std::vector<Setting>& settings, bool whole);

}  // namespace ddprun::worker
