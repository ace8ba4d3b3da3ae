#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace ddprun::data {

/// The folder of a data set known by name: $DDPRUN_DATA/NAME, <cache folder>/data/NAME, or where a
/// distribution's package puts it (/usr/share/datasets/NAME). nullopt if none of them exists.
std::optional<std::filesystem::path> locate(const std::string& name);

}  // namespace ddprun::data
