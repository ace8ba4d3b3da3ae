#include <ddprun/common/settings/setting.h>

#include <algorithm>

namespace ddprun::settings {
namespace {

/// Without get: what stands for "no value" depends on the target.
template <typename Number>
Setting make_number(std::string name, Number& target, const Range& range, std::string help) {
  const auto parse = [range](const std::string& text) {
    const auto value = parse_number(text);
    return value && range.contains(*value) ? value : std::nullopt;
  };
  Setting setting = parsed(std::move(name), target, parse, range.expected, std::move(help));
  setting.kind = Setting::Kind::kNumber;
  setting.type_name = "X";
  return setting;
}

std::string to_text(const std::string& text) { return text; }
std::string to_text(const std::filesystem::path& path) { return path.string(); }

template <typename Text>
Setting make_text(std::string name, Text& target, std::string type_name, std::string help) {
  const auto parse = [](const std::string& text) { return std::optional(text); };
  Setting setting = parsed(std::move(name), target, parse, "", std::move(help));
  setting.kind = Setting::Kind::kText;
  setting.type_name = std::move(type_name);
  setting.get = [&target] { return target.empty() ? std::nullopt : std::optional<Value>(to_text(target)); };
  return setting;
}

}  // namespace

std::string Setting::key() const {
  auto text = name;
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

bool Setting::belongs_to(const std::string& task) const {
  return tasks.empty() || std::find(tasks.begin(), tasks.end(), task) != tasks.end();
}

Setting unbound(std::string name, Setting::Kind kind, std::string help) {
  Setting setting;
  setting.name = std::move(name);
  setting.kind = kind;
  setting.help = std::move(help);
  return setting;
}

Setting help_flag() {
  return unbound("help", Setting::Kind::kSwitch, "show this help and exit").short_flag("-h").not_in_file();
}

Setting boolean(std::string name, bool& target, std::string help) {
  Setting setting = parsed(std::move(name), target, parse_truth, "true or false", std::move(help));
  setting.kind = Setting::Kind::kSwitch;
  setting.get = [&target]() -> std::optional<Value> { return target; };
  return setting;
}

Setting negated(std::string name, bool& target, std::string help) {
  auto setting = boolean(std::move(name), target, std::move(help));
  setting.negated = true;
  return setting;
}

Setting number(std::string name, double& target, Range range, std::string help) {
  auto setting = make_number(std::move(name), target, range, std::move(help));
  setting.get = [&target, range] {
    return range.contains(target) ? std::optional<Value>(target) : std::nullopt;
  };
  return setting;
}

Setting number(std::string name, std::optional<double>& target, Range range, std::string help) {
  auto setting = make_number(std::move(name), target, range, std::move(help));
  setting.get = [&target] { return target ? std::optional<Value>(*target) : std::nullopt; };
  return setting;
}

Setting text(std::string name, std::string& target, std::string help) {
  return make_text(std::move(name), target, "TEXT", std::move(help));
}

Setting path(std::string name, std::filesystem::path& target, std::string help) {
  return make_text(std::move(name), target, "FILE", std::move(help));
}

Setting list(std::string name, std::vector<std::string>& target, std::string help) {
  Setting setting = unbound(std::move(name), Setting::Kind::kList, std::move(help));
  setting.set = [&target](const std::string& text) {
    target.push_back(text);
    return std::string();
  };
  return setting;
}

Setting choice(std::string name, std::string& target, std::vector<std::string> names, std::string help) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& word : names) pairs.emplace_back(word, word);
  return choice<std::string>(std::move(name), target, std::move(pairs), std::move(help));
}

}  // namespace ddprun::settings
