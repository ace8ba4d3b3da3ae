#include <ddprun/common/settings/command.h>

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>

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

namespace {

[[noreturn]] void refuse(const Given& given, const std::string& expected) {
  throw UsageError(given.source + ": expected " + expected + ", got " +
                   (given.in_quotes ? single_quoted(given.text) : given.text));
}

/// The number of letters to add, remove or change to turn one word into the other.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

/// A mistyped letter or two, in a word that is long enough to be recognised.
bool is_near(const std::string& typed, const std::string& flag) {
  return typed.size() > 5 && typed.size() < 40 && distance(typed, flag) <= (typed.size() < 8 ? 1 : 2);
}

bool is_in(const std::string& word, const std::vector<std::string>& words) {
  return std::ranges::find(words, word) != words.end();
}

/// The setting with this flag or alias, or the only one whose flag begins with it. throws UsageError
///
/// word  the whole word, for messages about short flags
const Setting& find_flag(const std::string& typed, const std::string& word, const Command& command) {
  const std::string name = with_dashes(typed);
  std::vector<const Setting*> begins, flags;
  const auto starts = [&](const Setting& setting) {
    return name.size() > 2 && setting.flag().starts_with(name);
  };
  for (const Setting& setting : command.settings) {
    if (!setting.is_flag || !setting.belongs_to(command.task)) continue;
    if (setting.flag() == name || setting.alias == typed || "--" + setting.name == name) return setting;
    flags.push_back(&setting);
    if (starts(setting) && setting.may_be_short) begins.push_back(&setting);
  }
  if (begins.size() == 1) return *begins[0];
  std::vector<std::string> meant;
  for (const Setting* setting : flags)
    if (starts(*setting) || is_in(name, setting->elsewhere) || is_near(name, setting->flag()))
      meant.push_back(setting->flag());
  throw UsageError(
      (begins.empty() ? "unknown flag " : "ambiguous flag ") + single_quoted(typed[1] == '-' ? typed : word) +
      (meant.empty() ? ", see " + command.name + " --help" : ": did you mean " + one_of(meant) + "?"));
}

/// Whether a flag's value was forgotten: the next word is "--" or a flag.
bool looks_like_flag(const std::string& word, const Command& command) {
  if (word.starts_with("--")) return true;
  return word.size() > 1 && word[0] == '-' &&
         std::ranges::any_of(command.settings,
                             [&](const Setting& setting) { return setting.alias == word.substr(0, 2); });
}

/// "max-epochs", also of LightningCLI's --trainer.max_epochs
std::string foreign_name(const std::string& typed) {
  const auto name = with_dashes(typed);
  return name.starts_with("trainer.") ? name.substr(8) : name;
}

/// Reads another program's flag at words[i]. Returns the index of the word after it; 0 if it is ours, or
/// nobody's.
std::size_t read_foreign(const std::vector<std::string>& words, std::size_t i, const Command& command,
                         Values& values) {
  const std::string& word = words[i];
  const auto end = std::min(word.find('='), word.size());
  const auto name = foreign_name(word.substr(std::min<std::size_t>(2, end), end - 2));
  const auto row = std::ranges::find(command.foreign, name, &Foreign::name);
  if (word[1] != '-' || row == command.foreign.end()) return 0;
  std::string text = "true";
  if (end < word.size())
    text = word.substr(end + 1);
  else if (i + 1 < words.size() && !words[i + 1].starts_with("--") &&
           (!row->is_switch || lower_case(words[i + 1]) == "true" || lower_case(words[i + 1]) == "false"))
    text = words[++i];
  else if (!row->is_switch)
    throw UsageError(printable(word) + ": expected a value, got none");
  if (text.empty())
    throw UsageError(with_dashes(word.substr(0, end)) + ": expected a value after '=', got none");
  const auto adopted = adopt(name, {text, with_dashes(word.substr(0, end))}, command);
  if (!adopted) return 0;
  if (adopted->setting != nullptr) values.add(*adopted->setting, adopted->given);
  values.notes.push_back(adopted->note);
  return i + 1;
}

/// Reads the flag at words[i], and its value. Returns the index of the word after it.
std::size_t read_flag(const std::vector<std::string>& words, std::size_t i, const Command& command,
                      Values& values) {
  if (const auto next = read_foreign(words, i, command, values); next > 0) return next;
  const std::string& word = words[i];
  const bool is_short = word[1] != '-';
  const auto name_end = is_short ? std::size_t{2} : std::min(word.find('='), word.size());
  const std::string name = word.substr(0, name_end);
  const Setting& setting = find_flag(name, word, command);
  const std::string source = is_short ? name : setting.flag();
  std::string text = "true";
  if (name_end < word.size()) {
    text = word.substr(name_end + (word[name_end] == '=' ? 1 : 0));
    if (text.empty() && !setting.may_be_empty)
      throw UsageError(source + ": expected a value after '=', got none");
  } else if (setting.kind != Setting::Kind::kSwitch) {
    if (++i >= words.size() || (words[i].empty() && !setting.may_be_empty))
      throw UsageError(source + ": expected a value, got none");
    text = words[i];
    if (looks_like_flag(text, command))
      throw UsageError(source + ": expected a value, got the flag " + single_quoted(text) +
                       "; if it is the value, write " + source + (is_short ? "" : "=") + printable(text));
  }
  values.add(setting, {text, source}, setting.negated && with_dashes(name) != "--" + setting.name);
  return i + 1;
}

const Setting& find_setting(const std::string& name, const Command& command) {
  for (const Setting& setting : command.settings)
    if (setting.name == name && setting.belongs_to(command.task)) return setting;
  throw std::logic_error("broken invariant: a positional is a setting");
}

std::string usage(const Command& command);

Values assign_positionals(const std::vector<std::string>& words, const Command& command) {
  Values values;
  std::size_t place = 0;
  for (const std::string& word : words) {
    if (place == command.positionals.size())
      throw UsageError("unexpected argument " + single_quoted(word) +
                       (place == 0 ? ": " + command.name + " takes only flags" : "; " + usage(command)));
    const auto& [name, shown] = command.positionals[place];
    const Setting& setting = find_setting(name, command);
    values.add(setting, {word, shown});
    if (setting.kind != Setting::Kind::kList) ++place;
  }
  return values;
}

std::string usage(const Command& command) {
  if (!command.usage.empty()) return "usage: " + command.usage;
  std::string text = "usage: " + command.name + " [flags]";
  for (const auto& [name, shown] : command.positionals) text += " " + shown;
  return text;
}

std::string default_text(const Setting& setting) {
  const auto value = setting.get ? setting.get() : std::nullopt;
  if (!value) return "";
  if (const auto* integer = std::get_if<std::int64_t>(&*value)) return " [" + std::to_string(*integer) + "]";
  if (const auto* text = std::get_if<std::string>(&*value)) return " [" + *text + "]";
  const auto* number = std::get_if<double>(&*value);
  if (number == nullptr) return "";
  char text[32];
  std::snprintf(text, sizeof text, " [%g]", *number);
  return text;
}

std::string setting_line(const Setting& setting) {
  const std::string alias = setting.alias.empty() ? "" : setting.alias + ", ";
  const std::string type = setting.type_name.empty() ? "" : " " + setting.type_name;
  return help_line(alias + setting.flag() + type,
                   setting.help + (setting.help.ends_with(']') ? "" : default_text(setting)));
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
  notes.insert(notes.end(), upper.notes.begin(), upper.notes.end());
  for (const auto& [name, list] : upper.all_) all_[name] = list;
}

void Values::drop_empty() {
  std::erase_if(all_, [](const auto& one) { return one.second.size() == 1 && one.second[0].text.empty(); });
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

std::optional<Adopted> adopt(const std::string& typed, const Given& given, const Command& command) {
  const auto name = foreign_name(typed);
  for (const auto& row : command.foreign) {
    if (row.name != name) continue;
    const bool fits = row.value.empty() || row.value == (row.is_switch ? lower_case(given.text) : given.text);
    const auto value = row.convert ? row.convert(given.text) : std::optional(given.text);
    if (!fits || !value) continue;
    auto what = row.what;
    if (const auto at = what.find("{}"); at != std::string::npos) what.replace(at, 2, *value);
    const auto source = given.source + "=" + printable(given.text) + ": ";
    if (row.means == Foreign::Means::kOther) throw UsageError(source + printable(what));
    if (row.means == Foreign::Means::kNothing) return Adopted{nullptr, {}, source + what};
    const auto ours = what.substr(0, what.find('='));
    for (const auto& setting : command.settings)
      if (setting.name == ours && setting.belongs_to(command.task))
        return Adopted{&setting,
                       {what.substr(ours.size() + 1), given.source, given.in_quotes},
                       source + "taken as --" + printable(what)};
    return {};
  }
  return {};
}

Values read_words(const std::vector<std::string>& words, const Command& command) {
  Values flags;
  std::vector<std::string> others;
  std::size_t i = 0;
  while (i < words.size()) {
    const bool is_flag = words[i].size() >= 2 && words[i][0] == '-';
    if (words[i] == "--" || (!is_flag && command.flags_first)) break;
    if (is_flag)
      i = read_flag(words, i, command, flags);
    else
      others.push_back(words[i++]);
  }
  if (i < words.size() && words[i] == "--") ++i;
  others.insert(others.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
  Values values = assign_positionals(others, command);
  values.overlay(flags);
  return values;
}

std::string variable_name(const std::string& prefix, const Setting& setting) {
  std::string name = prefix;
  for (const char c : setting.flag().substr(2)) name += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

Values read_variables(const std::string& prefix, const EnvLookup& environment,
                      const std::vector<Setting>& settings) {
  Values values;
  for (const Setting& setting : settings) {
    if (!setting.is_flag || !setting.in_variables) continue;
    const std::string name = variable_name(prefix, setting);
    const auto text = environment(name);
    if (text && !(text->empty() && setting.kind != Setting::Kind::kSwitch))
      values.add(setting, {*text, name}, setting.negated);
  }
  return values;
}

void require(const Command& command, const Values& values, const std::vector<std::string>& names) {
  const auto check = [&](const std::string& name, const std::string& shown) {
    if (!values.given(name)) throw UsageError(shown + " is missing; " + usage(command));
  };
  for (const auto& [name, shown] : command.positionals) check(name, shown);
  for (const auto& name : names) check(name, "--" + name);
}

bool apply_words(const std::vector<std::string>& words, const Command& command,
                 const std::vector<std::string>& required) {
  const Values values = read_words(words, command);
  if (values.is_true("help")) {
    print_help(help_text(command));
    return false;
  }
  require(command, values, required);
  values.apply(command.settings, command.task);
  return true;
}

void print_help(const std::string& text) {
  write_stdout(takes_colours(STDOUT_FILENO) ? with_bold_headings(text) : text);
}

std::string did_you_mean(const std::string& typed, const std::vector<std::string>& names) {
  std::vector<std::string> meant;
  for (const auto& name : names)
    if (typed.size() < 40 && typed.size() > 1 &&
        (name.starts_with(typed) || distance(typed, name) <= (typed.size() < 4 ? 1U : 2U)))
      meant.push_back(name);
  return meant.empty() ? "" : ": did you mean " + one_of(meant) + "?";
}

std::string help_line(const std::string& name, const std::string& help) {
  constexpr std::size_t kIndent = 28;
  std::string text = "  " + name;
  for (const std::string& line : wrapped(help, kHelpWidth - kIndent)) {
    const auto begin = text.rfind('\n') + 1;
    const bool fits = text.size() - begin + 2 <= kIndent;
    text += fits ? std::string(kIndent - (text.size() - begin), ' ') : "\n" + std::string(kIndent, ' ');
    text += line + "\n";
  }
  return text;
}

namespace {

/// The text, each of its lines wrapped.
std::string paragraphs(const std::string& text) {
  std::string result;
  for (const auto& paragraph : split(text, '\n')) {
    const bool fits = paragraph.size() <= kHelpWidth;  // as it is, with its indentation
    result += (fits ? paragraph : joined(wrapped(paragraph, kHelpWidth), "\n")) + "\n";
  }
  return result;
}

std::string head_of_help(const Command& command) {
  std::string text =
      paragraphs(command.name + ": " + command.description) + "\n" + paragraphs(usage(command));
  for (const auto& [name, shown] : command.positionals)
    text += help_line(shown, find_setting(name, command).help);
  if (!command.often.empty()) text += "\nmost used\n";
  for (const auto& name : command.often) text += setting_line(find_setting(name, command));
  return text;
}

std::string end_of_help(const Command& command) {
  return command.footer.empty() ? "" : "\n" + paragraphs(command.footer);
}

}  // namespace

std::string help_text(const Command& command) {
  if (command.often.empty()) return whole_help_text(command);
  return head_of_help(command) + "\n`" + command.name + " --help-all` shows all flags.\n" +
         end_of_help(command);
}

std::string whole_help_text(const Command& command) {
  std::string text = head_of_help(command);
  if (!command.often.empty()) text += "\nothers\n";
  std::string section;
  for (const Setting& setting : command.settings) {
    if (!setting.is_flag || !setting.belongs_to(command.task) || is_in(setting.name, command.often)) continue;
    if (setting.section != section) text += "\n" + (section = setting.section) + "\n";
    text += setting_line(setting);
  }
  return text + end_of_help(command);
}

}  // namespace ddprun::settings
