#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace ddprun {

/// Parses untrusted JSON. Limits the depth, since reading, printing and freeing a value recurse.
///
/// throws  std::invalid_argument: "is not JSON", "is nested deeper than 32 levels"
nlohmann::json parse_shallow_json(std::string_view text, int most_levels = 32);

/// Parses an untrusted file of at most kMostJsonBytes and 32 levels.
///
/// expected  what the file should be, for the message: "the config.json of a SamModel"
/// throws    IoError naming path
nlohmann::json read_json(const std::filesystem::path& path, const char* expected);

/// The same for text. path: the file to name in errors
nlohmann::json parse_json(const std::string& text, const std::filesystem::path& path, const char* expected);

inline constexpr std::size_t kMostJsonBytes = 16 << 20;

}  // namespace ddprun
