#include "launcher/cli/flags.h"

#include <algorithm>

#include <ddprun/common/errors.h>
#include <ddprun/common/text/printable.h>
#include "launcher/cli/config_file.h"

namespace ddprun::launcher {
namespace {

/// "--a_b" and "--a-b" are one flag.
std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

/// The flag of that name or alias, or the only one whose name begins so. throws UsageError
const Flag& find_flag(const std::string& typed) {
  const std::string name = with_dashes(typed);
  std::vector<const Flag*> begins;
  for (const Flag& flag : all_flags()) {
    if (flag.name == name || flag.alias == typed) return flag;
    // "--token=SECRET" is a mistake by which the secret would be taken for a file's name, and shown.
    if (name.size() > 2 && flag.name.rfind(name, 0) == 0 && flag.name != "--token-file")
      begins.push_back(&flag);
  }
  if (begins.size() == 1) return *begins[0];
  std::string meant;
  for (const Flag* flag : begins) meant += (meant.empty() ? "" : " or ") + flag->name;
  throw UsageError("unknown flag " + quoted(typed) + ": expected " +
                   (meant.empty() ? "one of those that --help lists" : meant));
}

/// "1" and "yes" as well as "true", in the words of PET_ variables and configuration files. throws UsageError
std::string truth(const std::string& text, const std::string& source) {
  for (const char* word : {"1", "true", "True", "yes", "on"})
    if (text == word) return "true";
  for (const char* word : {"0", "false", "False", "no", "off", ""})
    if (text == word) return "false";
  throw UsageError(source + ": expected true or false (1 or 0), got " + quoted(text));
}

/// Flags that scripts fill from variables which may not be set: an empty value is none, as with torchrun.
bool may_be_empty(const Flag& flag) {
  for (const char* name :
       {"--rdzv-id", "--rdzv-endpoint", "--rdzv-conf", "--local-addr", "--local-ranks-filter", "--role",
        "--duplicate-stdout-filters", "--duplicate-stderr-filters"})
    if (flag.name == name) return true;
  return false;
}

/// Puts the flag down, with an empty value for none; "--no-prefix" as "--prefix" with the opposite value, so
/// that the last one counts.
void put_setting(const Flag& flag, const std::string& text, const std::string& source, CommandLine& line) {
  Setting setting{flag.takes_value ? text : truth(text, source), source};
  if (flag.name != "--no-prefix") {
    line.settings[flag.name] = setting;
    return;
  }
  setting.text = setting.text == "true" ? "false" : "true";
  line.settings["--prefix"] = setting;
}

/// Reads one flag at words[i], and its value; returns the index of the word after it.
std::size_t read_flag(const std::vector<std::string>& words, std::size_t i, CommandLine& line) {
  const std::string& word = words[i];
  const bool is_short = word[1] != '-';
  const auto name_end = is_short ? std::size_t{2} : std::min(word.find('='), word.size());
  const std::string name = word.substr(0, name_end);
  const Flag& flag = find_flag(name);
  const std::string& shown = is_short ? name : flag.name;
  std::optional<std::string> value;
  if (name_end < word.size()) {
    value = word.substr(name_end + (word[name_end] == '=' ? 1 : 0));
    if (value->empty() && !may_be_empty(flag))
      throw UsageError(shown + ": expected a value after '=', got none");
  } else if (flag.takes_value) {
    if (++i >= words.size() || (words[i].empty() && !may_be_empty(flag)))
      throw UsageError(shown + ": expected a value, got none");
    value = words[i];
  }
  put_setting(flag, value.value_or("true"), shown, line);
  return i + 1;
}

/// Gives the flags that the variables PREFIX_<FLAG> name.
void read_variables(const std::string& prefix, const EnvLookup& environment, CommandLine& line) {
  for (const Flag& flag : all_flags()) {
    if (prefix == "PET_" && !flag.torchruns) continue;
    std::string name = prefix;
    for (const char c : flag.name.substr(2)) name += c == '-' ? '_' : static_cast<char>(std::toupper(c));
    const auto value = environment(name);
    if (!value || (value->empty() && flag.takes_value)) continue;
    put_setting(flag, *value, name, line);
  }
}

void read_configuration(const std::string& path, CommandLine& line) {
  for (const ConfigEntry& entry : read_config_file(path)) {
    const std::string source = printable(path + ": " + entry.key);
    if (entry.key == "program") {
      line.program = entry.values;
      continue;
    }
    const std::string name = "--" + with_dashes(entry.key);
    const auto& known = all_flags();
    const auto flag = std::find_if(known.begin(), known.end(), [&](const Flag& f) { return f.name == name; });
    if (flag == known.end() || name == "--config")
      throw UsageError(source + ": expected the name of a flag, or program");
    if (entry.values.size() != 1) throw UsageError(source + ": expected one value");
    put_setting(*flag, entry.values[0], source, line);
  }
}

void overlay(const CommandLine& upper, CommandLine& lower) {
  for (const auto& [name, setting] : upper.settings) lower.settings[name] = setting;
  if (!upper.program.empty()) lower.program = upper.program;
}

}  // namespace

const std::vector<Flag>& all_flags() {
  static const std::vector<Flag> flags = {
      {"--nnodes", "", true, true},
      {"--nproc-per-node", "", true, true},
      {"--node-rank", "", true, true},
      {"--master-addr", "", true, true},
      {"--master-port", "", true, true},
      {"--local-addr", "", true, true},
      {"--rdzv-backend", "", true, true},
      {"--rdzv-endpoint", "", true, true},
      {"--rdzv-id", "", true, true},
      {"--rdzv-conf", "", true, true},
      {"--standalone", "", false, true},
      {"--max-restarts", "", true, true},
      {"--monitor-interval", "", true, true},
      {"--start-method", "", true, true},
      {"--event-log-handler", "", true, true},
      {"--role", "", true, true},
      {"--module", "-m", false, true},
      {"--no-python", "", false, true},
      {"--run-path", "", false, true},
      {"--log-dir", "", true, true},
      {"--redirects", "-r", true, true},
      {"--tee", "-t", true, true},
      {"--local-ranks-filter", "", true, true},
      {"--duplicate-stdout-filters", "", true, true},
      {"--duplicate-stderr-filters", "", true, true},
      {"--logs-specs", "", true, true},
      {"--numa-binding", "", true, true},
      {"--signals-to-handle", "", true, true},
      {"--virtual-local-rank", "", false, true},
      {"--join-timeout", "", true, false},
      {"--last-call", "", true, false},
      {"--node-timeout", "", true, false},
      {"--token-file", "", true, false},
      {"--shutdown-timeout", "", true, false},
      {"--forward-signals", "", true, false},
      {"--timeout", "", true, false},
      {"--hang-timeout", "", true, false},
      {"--restart-backoff", "", true, false},
      {"--restart-window", "", true, false},
      {"--restart-on-codes", "", true, false},
      {"--prefix", "", false, false},
      {"--no-prefix", "", false, false},
      {"--timestamp", "", false, false},
      {"--log-max-size", "", true, false},
      {"--result-json", "", true, false},
      {"--events-json", "", true, false},
      {"--display", "", true, false},
      {"--expand", "", false, false},
      {"--dry-run", "", false, false},
      {"--config", "", true, false},
      {"--help", "-h", false, false},
      {"--version", "", false, false},
  };
  return flags;
}

CommandLine read_command_line(const std::vector<std::string>& words, const EnvLookup& environment) {
  CommandLine typed;
  std::size_t i = 0;
  while (i < words.size() && words[i].size() >= 2 && words[i][0] == '-' && words[i] != "--")
    i = read_flag(words, i, typed);
  if (i < words.size() && words[i] == "--") ++i;
  typed.program.assign(words.begin() + static_cast<std::ptrdiff_t>(i), words.end());

  CommandLine variables;
  read_variables("PET_", environment, variables);
  read_variables("DDPRUN_", environment, variables);
  overlay(typed, variables);

  CommandLine line;
  const auto config = variables.settings.find("--config");
  if (config != variables.settings.end() && variables.settings.count("--help") == 0)
    read_configuration(config->second.text, line);
  overlay(variables, line);
  // Only now: an empty value takes away what a layer below it says.
  std::erase_if(line.settings, [](const auto& entry) { return entry.second.text.empty(); });
  return line;
}

}  // namespace ddprun::launcher
