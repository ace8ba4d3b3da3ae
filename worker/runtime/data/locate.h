#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::data {

/// The folder of a data set known by name: $DDPRUN_DATA/NAME, <cache folder>/data/NAME (where
/// scripts/get_data.sh puts it), where a distribution's package puts it (/usr/share/datasets/NAME), or what
/// comes with the programs (share/ddprun/NAME beside their bin/: "nuclei-sample").
/// nullopt if none of them exists.
std::optional<std::filesystem::path> locate(const std::string& name);

/// The folder that `--data` means: one of the names, a folder, or, if it is empty, the first name that is
/// there.
///
/// names   the data sets that a task can train on, the default first
/// throws  UsageError if a name, or with an empty source all of them, is not there
std::filesystem::path find_data(const std::string& source, const std::vector<std::string>& names);

}  // namespace ddprun::data
