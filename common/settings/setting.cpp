#include <ddprun/common/settings/setting.h>

#include <algorithm>

namespace ddprun::settings {
namespace {

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
  std::ranges::replace(text, '-', '_');
  return text;
}

bool Setting::belongs_to(const std::string& task) const {
  return tasks.empty() || std::ranges::find(tasks, task) != tasks.end();
}

Setting unbound(std::string name, Setting::Kind kind, std::string help) {
  Setting setting;
  setting.name = std::move(name);
  setting.kind = kind;
  setting.help = std::move(help);
  return setting;
}

Setting help_flag() {
  return unbound("help", Setting::Kind::kSwitch, "show this help and exit").short_flag("-h").only_typed();
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

template <typename Number>
Setting number(std::string name, Number& target, Range range, std::string help) {
  const auto parse = [range](const std::string& text) {
    const auto value = parse_number(text);
    return value && range.contains(*value) ? value : std::nullopt;
  };
  Setting setting = parsed(std::move(name), target, parse, range.expected, std::move(help));
  setting.kind = Setting::Kind::kNumber;
  setting.type_name = "X";
  setting.get = [&target, range] {
    const std::optional<double> value = target;
    return value && range.contains(*value) ? std::optional<Value>(*value) : std::nullopt;
  };
  return setting;
}
template Setting number(std::string, double&, Range, std::string);
template Setting number(std::string, std::optional<double>&, Range, std::string);

template <typename Time>
Setting seconds(std::string name, Time& target, Range range, std::string help) {
  using std::chrono::milliseconds;
  const auto parse = [range](const std::string& text) -> std::optional<milliseconds> {
    const auto value = parse_number(text);
    if (!value || !range.contains(*value)) return {};
    return std::max(milliseconds(*value > 0 ? 1 : 0),
                    std::chrono::round<milliseconds>(std::chrono::duration<double>(*value)));
  };
  Setting setting = parsed(std::move(name), target, parse, range.expected, std::move(help));
  setting.kind = Setting::Kind::kNumber;
  setting.type_name = "SECONDS";
  setting.get = [&target]() -> std::optional<Value> {
    const std::optional<milliseconds> time = target;
    if (!time) return {};
    return std::chrono::duration<double>(*time).count();
  };
  return setting;
}
template Setting seconds(std::string, std::chrono::milliseconds&, Range, std::string);
template Setting seconds(std::string, std::optional<std::chrono::milliseconds>&, Range, std::string);

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
