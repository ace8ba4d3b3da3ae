#include <ddprun/common/settings/toml.h>

#define TOML_ENABLE_FORMATTERS 0
// Debug builds of toml++ assert on files such as "[[[a]]]", which its parser goes on to refuse as it should.
#define TOML_ASSERT(expression) static_assert(true)
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text/printable.h>

namespace ddprun::settings {
namespace {

using Kind = Setting::Kind;

constexpr std::size_t kMaxBytes = 1 << 20;

std::string place(const std::filesystem::path& path, const toml::source_region& where) {
  return printable(path.string() + ":" + std::to_string(where.begin.line) + ": ");
}

toml::table parse(const std::filesystem::path& path) {
  const std::string text = read_file(path, kMaxBytes);
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw UsageError(place(path, error.source()) + printable(error.description()));
  }
}

/// The shortest text of just this number.
std::string number_text(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string as_float(std::string number) {
  return number.find_first_of(".en") == std::string::npos ? number + ".0" : number;
}

/// What the node holds if a setting of this kind may hold it, as the command line would have it.
std::optional<std::string> text_of(const toml::node& node, Kind kind) {
  const bool any = kind == Kind::kScalar || kind == Kind::kList;
  if ((any || kind == Kind::kSwitch) && node.is_boolean()) return node.as_boolean()->get() ? "true" : "false";
  if ((any || kind == Kind::kText || kind == Kind::kIntegerOrText) && node.is_string())
    return node.as_string()->get();
  if (kind != Kind::kSwitch && kind != Kind::kText && node.is_integer())
    return std::to_string(node.as_integer()->get());
  if ((any || kind == Kind::kNumber) && node.is_floating_point())
    return number_text(node.as_floating_point()->get());
  return {};
}

std::string shown(const toml::node& node) {
  if (const auto* number = node.as_floating_point()) return as_float(number_text(number->get()));
  if (const auto text = text_of(node, Kind::kScalar)) return node.is_string() ? quoted(*text) : *text;
  if (node.is_array()) return "a list";
  return node.is_table() ? "a section" : "a date or time";
}

const char* type_of(Kind kind) {
  switch (kind) {
    case Kind::kSwitch:
      return "true or false";
    case Kind::kInteger:
      return "an integer";
    case Kind::kNumber:
      return "a number";
    case Kind::kText:
      return "a string";
    case Kind::kIntegerOrText:
      return "an integer or a string";
    case Kind::kScalar:
    case Kind::kList:
      return "a string, a number, true or false";
  }
  return "";
}

/// One file being read.
struct Reader {
  const std::filesystem::path& path;
  const Command& command;
  Values values = {};

  [[noreturn]] void refuse(const toml::node& node, const std::string& what) const {
    throw UsageError(place(path, node.source()) + printable(what));
  }

  /// The setting of that key in a section ("*": in any): the task's, else another task's; null: none.
  const Setting* find(const std::string& section, const std::string& key) const {
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', '-');
    const Setting* found = nullptr;
    for (const auto& setting : command.settings) {
      const bool named = setting.name == name || (setting.negated && "no-" + setting.name == name);
      if (!setting.in_file || !named || !(section == "*" || setting.section == section)) continue;
      if (setting.belongs_to(command.task)) return &setting;
      found = &setting;
    }
    return found;
  }

  void read(const std::string& section, const toml::table& table) {
    for (const auto& [name, node] : table) {
      const std::string key(name.str());
      if (const Setting* setting = find(section, key)) {
        read_setting(*setting, key, node);
      } else if (section.empty() && node.is_table() && is_section(key)) {
        read(key, *node.as_table());
      } else if (const Setting* elsewhere = find("*", key)) {
        refuse(node, "'" + key + "' belongs under [" + elsewhere->section + "]" +
                         (section.empty() ? "" : ", not [" + section + "]"));
      } else if (node.is_table()) {
        refuse(node, "unknown section [" + key + "]");
      } else {
        refuse(node, "unknown key '" + key + "'" + (section.empty() ? "" : " in [" + section + "]"));
      }
    }
  }

  bool is_section(const std::string& name) const {
    return std::any_of(command.settings.begin(), command.settings.end(),
                       [&](const Setting& setting) { return setting.section == name; });
  }

  void read_setting(const Setting& setting, const std::string& key, const toml::node& node) {
    const std::string name = setting.section + (setting.section.empty() ? "" : ".") + key;
    if (!setting.belongs_to(command.task))
      refuse(node, name + ": the task " + command.task + " has no such setting");
    if (const auto* list = node.as_array(); list != nullptr && setting.kind == Kind::kList) {
      for (const auto& element : *list) add(setting, name, element);
    } else {
      add(setting, name, node);
    }
  }

  void add(const Setting& setting, const std::string& name, const toml::node& node) {
    const auto text = text_of(node, setting.kind);
    if (!text) refuse(node, name + ": expected " + type_of(setting.kind) + ", got " + shown(node));
    values.add(setting, {*text, place(path, node.source()) + printable(name), node.is_string()});
  }
};

std::string literal(const Value& value) {
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "true" : "false";
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return std::to_string(*integer);
  if (const auto* number = std::get_if<double>(&value)) return as_float(number_text(*number));
  // JSON's strings are TOML's basic strings, but for one character. A path is bytes, both are UTF-8.
  auto text = nlohmann::json(std::get<std::string>(value))
                  .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (std::size_t at = 0; (at = text.find('\x7f', at)) != std::string::npos;) text.replace(at, 1, "\\u007f");
  return text;
}

}  // namespace

Values read_toml(const std::filesystem::path& path, const Command& command) {
  Reader reader{path, command};
  reader.read("", parse(path));
  return std::move(reader.values);
}

std::string top_level_text(const std::filesystem::path& path, const std::string& key) {
  const auto root = parse(path);
  const auto* node = root.get(key);
  if (node == nullptr) return "";
  if (!node->is_string())
    throw UsageError(place(path, node->source()) + key + ": expected a string, got " + shown(*node));
  return node->as_string()->get();
}

std::string to_toml(const Command& command, bool whole) {
  std::string text, section;
  for (const auto& setting : command.settings) {
    if (!setting.belongs_to(command.task) || !setting.in_file || !(whole || setting.kept)) continue;
    if (setting.section != section) text += "\n[" + (section = setting.section) + "]\n";
    const auto value = setting.get();
    text += value ? setting.key() + " = " + literal(*value) + "\n" : "# " + setting.key() + " is not set\n";
  }
  return text;
}

}  // namespace ddprun::settings
