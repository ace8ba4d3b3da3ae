#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::data {

/// The folder of a data set known by name. Looks in $DDPRUN_DATA, the cache folder's data/ (where
/// scripts/get_data.sh puts it), /usr/share/datasets (distribution packages), and share/ddprun beside the
/// programs' bin/ ("nuclei-sample").
///
/// returns  nullopt if none of them has it
std::optional<std::filesystem::path> find_dataset(const std::string& name);

/// Resolves `--data`: a data set's name, a folder, or, if empty, the first of the names found.
///
/// names   the data sets that a task can train on, the default first
/// throws  UsageError if the data set is not found, or, with an empty source, none of them
std::filesystem::path find_data(const std::string& source, const std::vector<std::string>& names);

}  // namespace ddprun::data
