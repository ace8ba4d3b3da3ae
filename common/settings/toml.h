#pragma once

#include <filesystem>
#include <string>

#include <ddprun/common/settings/command.h>

namespace ddprun::settings {

/// Reads a TOML file of the command's settings:
///
///   task = "mnist"
///   [train]
///   epochs = 5
///
/// throws IoError if it cannot be read; UsageError, "FILE:LINE: ...", for what is not TOML, an unknown
/// section or key, one of another task, and a value of another type
Values read_toml(const std::filesystem::path& path, const Command& command);

/// The text of a key at the top of the file; empty if it is not there. throws as read_toml()
std::string top_level_text(const std::filesystem::path& path, const std::string& key);

/// The command's settings as such a file; one without a value is a comment.
///
/// whole  also those that do not repeat a run (--out)
std::string to_toml(const Command& command, bool whole);

}  // namespace ddprun::settings
