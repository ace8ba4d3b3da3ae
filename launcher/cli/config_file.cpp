#include "launcher/cli/config_file.h"

#define TOML_ENABLE_FORMATTERS 0
// Debug builds of toml++ assert on files such as "[[[a]]]", which its parser goes on to refuse as it should.
#define TOML_ASSERT(expression) static_assert(true)
#include <toml++/toml.h>

#include <charconv>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text/printable.h>

namespace ddprun::launcher {
namespace {

constexpr std::size_t kMaxBytes = 1 << 20;

UsageError at(const std::filesystem::path& path, const toml::source_region& where, const std::string& what) {
  return UsageError(printable(path.string() + ":" + std::to_string(where.begin.line) + ": " + what));
}

std::string scalar_text(const std::filesystem::path& path, const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  if (const auto* number = node.as_floating_point()) {
    char text[32];  // the shortest text of just this number has at most 24
    return {text, std::to_chars(text, text + sizeof text, number->get()).ptr};
  }
  throw at(path, node.source(), "expected a string, a number, true or false");
}

}  // namespace

std::vector<ConfigEntry> read_config_file(const std::filesystem::path& path) {
  const std::string text = read_file(path, kMaxBytes);
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw at(path, error.source(), std::string(error.description()));
  }
  std::vector<ConfigEntry> entries;
  for (const auto& [key, node] : table) {
    ConfigEntry entry{std::string(key.str()), {}};
    if (const auto* list = node.as_array()) {
      for (const auto& element : *list) entry.values.push_back(scalar_text(path, element));
    } else {
      entry.values.push_back(scalar_text(path, node));
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace ddprun::launcher
