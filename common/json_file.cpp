#include <ddprun/common/json_file.h>

#include <nlohmann/json.hpp>

#include <stdexcept>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>

namespace ddprun {
using nlohmann::json;

json parse_shallow_json(std::string_view text, int most_levels) {
  const auto check_depth = [&](int depth, json::parse_event_t, json&) {
    if (depth >= most_levels)
      throw std::invalid_argument("is nested deeper than " + std::to_string(most_levels) + " levels");
    return true;
  };
  auto root = json::parse(text.begin(), text.end(), check_depth, /*allow_exceptions=*/false);
  if (root.is_discarded()) throw std::invalid_argument("is not JSON");
  return root;
}

json read_json(const std::filesystem::path& path, const char* expected) {
  return parse_json(read_file(path, kMostJsonBytes), path, expected);
}

json parse_json(const std::string& text, const std::filesystem::path& path, const char* expected) {
  try {
    return parse_shallow_json(text);
  } catch (const std::invalid_argument& error) {
    throw IoError(path, std::string(error.what()) + ", expected " + expected);
  }
}

}  // namespace ddprun
