#include <ddprun/common/settings/values.h>

#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/text/printable.h>

namespace ddprun::settings {
namespace {

[[noreturn]] void refuse(const Given& given, const std::string& expected) {
  throw UsageError(given.source + ": expected " + expected + ", got " +
                   (given.in_quotes ? quoted(given.text) : given.text));
}

}  // namespace

void Values::add(const Setting& setting, Given given, bool opposite) {
  if (setting.kind == Setting::Kind::kSwitch) {
    const auto truth = given.text.empty() ? false : parse_truth(given.text);
    if (!truth) refuse(given, "true or false");
    given.text = *truth != opposite ? "true" : "false";
  }
  auto& list = all_[setting.name];
  if (setting.kind != Setting::Kind::kList) list.clear();
  list.push_back(std::move(given));
}

void Values::overlay(const Values& upper) {
  for (const auto& [name, list] : upper.all_) all_[name] = list;
}

void Values::drop_empty() {
  std::erase_if(all_, [](const auto& entry) { return entry.second.back().text.empty(); });
}

std::string Values::text(const std::string& name, const std::string& fallback) const {
  const auto found = all_.find(name);
  return found == all_.end() ? fallback : found->second.back().text;
}

std::vector<std::string> Values::texts(const std::string& name) const {
  std::vector<std::string> texts;
  if (given(name))
    for (const auto& one : all_.at(name)) texts.push_back(one.text);
  return texts;
}

void Values::apply(const std::vector<Setting>& settings, const std::string& task) const {
  for (const auto& setting : settings) {
    if (!setting.set || !setting.belongs_to(task) || !given(setting.name)) continue;
    for (const auto& one : all_.at(setting.name))
      if (const auto expected = setting.set(one.text); !expected.empty()) refuse(one, expected);
  }
}

void Values::reject(const std::string& name, const std::string& expected) const {
  refuse(all_.at(name).back(), expected);
}

}  // namespace ddprun::settings
