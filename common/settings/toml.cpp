#include <ddprun/common/settings/command.h>

#define TOML_ENABLE_FORMATTERS 0
// Debug builds of toml++ assert on files such as "[[[a]]]", which its parser would then properly reject.
#define TOML_ASSERT(expression) static_assert(true)
#include <toml++/toml.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>

namespace ddprun::settings {
namespace {

using Kind = Setting::Kind;

constexpr std::size_t kMaxBytes = 1 << 20;

std::string place(const std::filesystem::path& path, const toml::source_region& where) {
  return printable(path.string() + ":" + std::to_string(where.begin.line) + ": ");
}

/// toml++'s words for the most common mistakes, in plainer ones.
std::string plainer(const std::string& text) {
  const auto has = [&](const char* part) { return text.find(part) != std::string::npos; };
  if (has("multi-line")) return text;
  if (has("control characters other than TAB") || has("string: encountered end-of-file"))
    return std::string("expected the string to end with ") + (has("literal") ? "'" : "\"") + " on this line";
  if (has("expected value, saw")) return "expected a value after '='";
  if (has("pair: cannot redefine")) return text.substr(text.find(" '") + 1) + " is given twice";
  return text;
}

toml::table parse(const std::filesystem::path& path) {
  const std::string text = read_file(path, kMaxBytes);
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw UsageError(place(path, error.source()) + printable(plainer(std::string(error.description()))));
  }
}

std::string as_float(std::string number) {
  return number.find_first_of(".en") == std::string::npos ? number + ".0" : number;
}

/// What a file may hold for a setting of each Kind: in words, and as types of TOML.
struct KindInfo {
  const char* expected;
  std::vector<toml::node_type> types;
};

const KindInfo& info_of(Kind kind) {
  using enum toml::node_type;
  static const KindInfo infos[] = {
      {"true or false", {boolean}},
      {"an integer", {integer}},
      {"a number", {integer, floating_point}},
      {"a string", {string}},
      {"an integer or a string", {integer, string}},
      {"a string, a number, true or false", {string, integer, floating_point, boolean}},
      {"strings, numbers, true or false", {string, integer, floating_point, boolean}},
  };
  return infos[static_cast<std::size_t>(kind)];
}

/// As on the command line; nullopt for lists, sections and times.
std::optional<std::string> text_of(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) return shortest_text(number->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  return {};
}

std::string shown(const toml::node& node) {
  if (const auto text = text_of(node))
    return node.is_string() ? single_quoted(*text) : node.is_floating_point() ? as_float(*text) : *text;
  if (node.is_array()) return "a list";
  return node.is_table() ? "a section" : "a date or time";
}

/// One file being read.
struct Reader {
  const std::filesystem::path& path;
  const Command& command;
  Values values = {};

  [[noreturn]] void refuse(const toml::node& node, const std::string& what) const {
    throw UsageError(place(path, node.source()) + printable(what));
  }

  /// The setting for that key in a section ("*": in any): the task's, else another task's; null: none.
  const Setting* find(const std::string& section, const std::string& key) const {
    const std::string name = with_dashes(key);
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
      if (read_foreign(section, key, node)) continue;
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
        refuse(node, "unknown key '" + key + "'" + (section.empty() ? "" : " in [" + section + "]") +
                         did_you_mean(key, keys_like(key, section)));
      }
    }
  }

  /// Returns whether the key, or its value, is another program's.
  bool read_foreign(const std::string& section, const std::string& key, const toml::node& node) {
    const auto text = text_of(node);
    if (!text) return false;
    const auto name = section + (section.empty() ? "" : ".") + key;
    const auto adopted =
        adopt(key, {*text, place(path, node.source()) + printable(name), node.is_string()}, command);
    if (!adopted) return false;
    if (const auto* setting = adopted->setting; setting != nullptr) {
      if (values.given(setting->name))
        refuse(node, name + ": set a second time, after " + values.source(setting->name));
      values.add(*setting, adopted->given);
    }
    values.notes.push_back(adopted->note);
    return true;
  }

  /// The keys of a section, with underscores if the typed one has some.
  std::vector<std::string> keys_like(const std::string& typed, const std::string& section) const {
    std::vector<std::string> keys;
    for (const auto& setting : command.settings)
      if (setting.in_file && setting.section == section && setting.belongs_to(command.task))
        keys.push_back(typed.find('_') == std::string::npos ? setting.name : setting.key());
    return keys;
  }

  bool is_section(const std::string& name) const {
    return std::ranges::any_of(command.settings,
                               [&](const Setting& setting) { return setting.section == name; });
  }

  void read_setting(const Setting& setting, const std::string& key, const toml::node& node) {
    const std::string name = setting.section + (setting.section.empty() ? "" : ".") + key;
    if (!setting.belongs_to(command.task))
      refuse(node, name + ": the task " + command.task + " has no such setting");
    if (values.given(setting.name))
      refuse(node, name + ": set a second time, after " + values.source(setting.name));
    if (const auto* list = node.as_array(); list != nullptr && setting.kind == Kind::kList) {
      for (const auto& element : *list) add(setting, name, element);
    } else {
      add(setting, name, node);
    }
  }

  void add(const Setting& setting, const std::string& name, const toml::node& node) {
    const auto& [expected, types] = info_of(setting.kind);
    if (std::ranges::find(types, node.type()) == types.end())
      refuse(node, name + ": expected " + expected + ", got " + shown(node));
    if (const auto* text = node.as_string()) {
      if (text->get().find('\0') != std::string::npos)
        refuse(node, name + ": expected text without NUL, got " + shown(node));
      if (text->get().empty() && !setting.may_be_empty && setting.kind != Kind::kList)
        refuse(node, name + ": expected a value, got ''");
    }
    const bool opposite = setting.negated && ("." + with_dashes(name)).ends_with(".no-" + setting.name);
    values.add(setting, {*text_of(node), place(path, node.source()) + printable(name), node.is_string()},
               opposite);
  }
};

std::string literal(const Value& value) {
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "true" : "false";
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return std::to_string(*integer);
  if (const auto* number = std::get_if<double>(&value)) return as_float(shortest_text(*number));
  // JSON's strings are TOML's basic strings, except for one character. A path is bytes, both are UTF-8.
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

Given top_level_text(const std::filesystem::path& path, const std::string& key) {
  const auto root = parse(path);
  const auto* node = root.get(key);
  if (node == nullptr) return {};
  if (!node->is_string())
    throw UsageError(place(path, node->source()) + key + ": expected a string, got " + shown(*node));
  return {node->as_string()->get(), place(path, node->source())};
}

std::string to_toml(const Command& command, bool whole) {
  std::string text, section;
  for (const auto& setting : command.settings) {
    if (!setting.belongs_to(command.task) || !setting.in_file || !setting.get || !(whole || setting.kept))
      continue;
    if (setting.section != section) text += "\n[" + (section = setting.section) + "]\n";
    const auto value = setting.get();
    const bool is_bare = setting.kind == Kind::kInteger || setting.kind == Kind::kNumber;
    if (value)
      text += setting.key() + " = " + literal(*value) + "\n";
    else if (setting.example.empty())
      text += "# " + setting.key() + " is not set\n";
    else
      text += "# " + setting.key() + " = " + (is_bare ? setting.example : literal(setting.example)) + "\n";
  }
  return text;
}

}  // namespace ddprun::settings
