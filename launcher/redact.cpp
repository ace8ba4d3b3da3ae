#include "launcher/redact.h"

#include <algorithm>
#include <cctype>

#include "launcher/printable.h"

namespace ddprun {
namespace {

constexpr const char* kHidden = "***";

std::string without_url_password(const std::string& word) {
  const auto scheme = word.find("://");
  if (scheme == std::string::npos) return word;
  const auto begin = scheme + 3;
  const auto authority_end = std::min(word.find_first_of("/?# ", begin), word.size());
  const auto at = word.substr(0, authority_end).rfind('@');
  const auto colon = word.find(':', begin);
  if (at == std::string::npos || at < begin || colon > at) return word;
  return word.substr(0, colon + 1) + kHidden + word.substr(at);
}

std::string quoted_for_shell(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-./=:,+@%*").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

bool is_secret_name(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* part : {"token", "secret", "key", "password", "passwd", "credential"})
    if (lower.find(part) != std::string::npos) return true;
  return false;
}

std::string redacted_variable(const std::string& variable) {
  // Each '=', so that --env=API_KEY=V and ?page=1&token=V are seen too.
  for (auto equals = variable.find('='); equals != std::string::npos; equals = variable.find('=', equals + 1))
    if (is_secret_name(std::string_view(variable).substr(0, equals)))
      return variable.substr(0, equals + 1) + kHidden;
  return without_url_password(variable);
}

std::vector<std::string> redacted(const std::vector<std::string>& arguments) {
  std::vector<std::string> shown;
  bool value_follows = false;  // the word before was "--api-key"
  for (const std::string& word : arguments) {
    const bool is_flag = word.size() > 1 && word[0] == '-';
    const bool is_long_flag = word.substr(0, 2) == "--";
    if (value_follows && !is_long_flag) {
      shown.emplace_back(kHidden);
      value_follows = false;
      continue;
    }
    const bool assigns = word.find('=') != std::string::npos;
    value_follows = is_flag && !assigns && is_secret_name(word);
    shown.push_back(redacted_variable(word));
  }
  return shown;
}

std::string shown_command(const std::vector<std::string>& arguments) {
  std::string line;
  for (const std::string& word : redacted(arguments))
    line += (line.empty() ? "" : " ") + quoted_for_shell(printable(word));
  return line;
}

}  // namespace ddprun
