#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ddprun/common/settings/values.h>
#include <ddprun/common/worker_env.h>

namespace ddprun::settings {

/// A command line with its settings: all of a program, or one of its commands.
struct Command {
  std::string name;                 ///< "worker mnist"
  std::string task;                 ///< "mnist": whose settings of the table it has
  std::string description, footer;  ///< of the help
  std::vector<Setting> settings;
  /// Settings that are given without a flag, in this order, and what the help calls them.
  std::vector<std::pair<std::string, std::string>> positionals;
  bool flags_first = false;  ///< flags end at the first other word: the rest belongs to the last positional
};

/// Reads the words of a command line: flags with dashes or underscores, as "--flag VALUE", "--flag=VALUE" or
/// "-fVALUE". "--" ends the flags. If a flag is repeated, the last one wins.
/// throws UsageError naming the word that is wrong
Values read_words(const std::vector<std::string>& words, const Command& command);

/// Reads PREFIX_FLAG variables. An empty one counts for switches alone.
Values read_variables(const std::string& prefix, const EnvLookup& environment,
                      const std::vector<Setting>& settings);

/// throws UsageError, with the usage, if one of the positionals or of these flags was not given
void require(const Command& command, const Values& values, const std::vector<std::string>& names = {});

/// All of that for a command without variables and files: sets what the words give, of which the positionals
/// and these flags are required. Returns false, with the help printed, if they ask for it.
bool apply_words(const std::vector<std::string>& words, const Command& command,
                 const std::vector<std::string>& required = {});

/// What --help shows.
std::string help_text(const Command& command);

}  // namespace ddprun::settings
