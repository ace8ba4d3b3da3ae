#include "worker/config/toml.h"

#define TOML_ENABLE_FORMATTERS 0
// Debug builds of toml++ assert on files such as "[[[a]]]", which its parser goes on to refuse as it should.
#define TOML_ASSERT(expression) static_assert(true)
#include <toml++/toml.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>

namespace ddprun::worker {
namespace {

constexpr std::size_t kMaxBytes = 1 << 20;

UsageError at(const std::filesystem::path& file, const toml::source_region& where, const std::string& what) {
  return UsageError(file.string() + ":" + std::to_string(where.begin.line) + ": " + what);
}

toml::table parse_file(const std::filesystem::path& file) {
  const std::string text = read_file(file, kMaxBytes);
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw at(file, error.source(), std::string(error.description()));
  }
}

/// The shortest text of just this number.
std::string number_text(double value) {
  char text[32];
  std::string shortest(text, std::to_chars(text, text + sizeof text, value).ptr);
  return shortest.find_first_of(".en") == std::string::npos ? shortest + ".0" : shortest;
}

/// What the node holds if it is of the setting's type, as the command line would have it.
std::optional<std::string> text_of(const toml::node& node, Setting::Kind kind) {
  using Kind = Setting::Kind;
  if (kind == Kind::kBoolean && node.is_boolean()) return node.as_boolean()->get() ? "true" : "false";
  const bool text = kind == Kind::kText || kind == Kind::kIntegerOrText;
  if (text && node.is_string()) return node.as_string()->get();
  const bool integer = kind == Kind::kInteger || kind == Kind::kNumber || kind == Kind::kIntegerOrText;
  if (integer && node.is_integer()) return std::to_string(node.as_integer()->get());
  if (kind == Kind::kNumber && node.is_floating_point()) return number_text(node.as_floating_point()->get());
  return std::nullopt;
}

std::string shown(const toml::node& node) {
  if (const auto* text = node.as_string()) return "'" + text->get() + "'";
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) return number_text(number->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  if (node.is_array()) return "a list";
  return node.is_table() ? "a section" : "a date or time";
}

const char* type_of(Setting::Kind kind) {
  switch (kind) {
    case Setting::Kind::kBoolean:
      return "true or false";
    case Setting::Kind::kInteger:
      return "an integer";
    case Setting::Kind::kNumber:
      return "a number";
    case Setting::Kind::kText:
      return "a string";
    case Setting::Kind::kIntegerOrText:
      return "an integer or a string";
  }
  return "";
}

/// The task's own, or else another task's; null: there is none.
const Setting* find(const std::vector<Setting>& settings, const std::string& task, std::string_view section,
                    std::string_view key) {
  const Setting* found = nullptr;
  for (const auto& setting : settings) {
    if (setting.key() != key || !(section.empty() || setting.section == section)) continue;
    if (setting.belongs_to(task)) return &setting;
    found = &setting;
  }
  return found;
}

bool is_section(const std::vector<Setting>& settings, std::string_view name) {
  for (const auto& setting : settings)
    if (setting.section == name) return true;
  return false;
}

/// One file being applied.
struct Reader {
  const std::filesystem::path& file;
  const std::string& task;
  const std::vector<Setting>& settings;

  void read(const toml::table& root) const {
    for (const auto& [key, node] : root) {
      const std::string name(key.str());
      if (name == "task") continue;  // task_of_toml()'s
      const auto* setting = find(settings, task, "", name);
      if (is_section(settings, name) && node.is_table())
        read_section(name, *node.as_table());
      else if (setting != nullptr)
        throw at(file, node.source(), "'" + name + "' belongs under [" + setting->section + "]");
      else if (node.is_table())
        throw at(file, node.source(), "unknown section [" + name + "]");
      else
        throw at(file, node.source(), "unknown key '" + name + "'");
    }
  }

  void read_section(const std::string& section, const toml::table& table) const {
    for (const auto& [key, node] : table) {
      const std::string name(key.str());
      if (const auto* setting = find(settings, task, section, name)) {
        read_setting(*setting, node);
        continue;
      }
      const auto* elsewhere = find(settings, task, "", name);
      throw at(file, node.source(),
               elsewhere != nullptr
                   ? "'" + name + "' belongs under [" + elsewhere->section + "], not [" + section + "]"
                   : "unknown key '" + name + "' in [" + section + "]");
    }
  }

  void read_setting(const Setting& setting, const toml::node& node) const {
    const auto name = setting.section + "." + setting.key();
    if (!setting.belongs_to(task))
      throw at(file, node.source(), name + ": the task " + task + " has no such setting");
    const auto text = text_of(node, setting.kind);
    const auto expected = text ? setting.set(*text) : type_of(setting.kind);
    if (!expected.empty())
      throw at(file, node.source(), name + ": expected " + expected + ", got " + shown(node));
  }
};

std::string literal(const Value& value) {
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "true" : "false";
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return std::to_string(*integer);
  if (const auto* number = std::get_if<double>(&value)) return number_text(*number);
  // JSON's strings are TOML's basic strings, but for one character. A path is bytes, both are UTF-8.
  auto text = nlohmann::json(std::get<std::string>(value))
                  .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (std::size_t at = 0; (at = text.find('\x7f', at)) != std::string::npos;) text.replace(at, 1, "\\u007f");
  return text;
}

}  // namespace

std::string task_of_toml(const std::filesystem::path& file) {
  const auto root = parse_file(file);
  const auto* node = root.get("task");
  if (node == nullptr) return "";
  if (!node->is_string()) throw at(file, node->source(), "task: expected a string, got " + shown(*node));
  return node->as_string()->get();
}

void apply_toml(const std::filesystem::path& file, const std::string& task,
                const std::vector<Setting>& settings) {
  Reader{file, task, settings}.read(parse_file(file));
}

std::string to_toml(const std::string& task, const std::vector<Setting>& settings, bool whole) {
  std::string text = "task = " + literal(task) + "\n", section;
  for (const auto& setting : settings) {
    if (!setting.belongs_to(task) || !(whole || setting.in_run_folder)) continue;
    if (setting.section != section) text += "\n[" + (section = setting.section) + "]\n";
    const auto value = setting.get();
    text += value ? setting.key() + " = " + literal(*value) + "\n" : "# " + setting.key() + " is not set\n";
  }
  return text;
}

}  // namespace ddprun::worker
