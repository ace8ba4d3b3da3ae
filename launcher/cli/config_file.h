#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ddprun::launcher {

/// `key = value` or `key = [value, ...]` of a configuration file; values as text.
struct ConfigEntry {
  std::string key;
  std::vector<std::string> values;
};

/// Reads a TOML file of flat entries (no tables), sorted by key. throws IoError, or UsageError naming the
/// line
std::vector<ConfigEntry> read_config_file(const std::filesystem::path& path);

}  // namespace ddprun::launcher
