#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/worker_env.h>

namespace ddprun::launcher {

/// One flag of the command line.
struct Flag {
  std::string name;   ///< "--nproc-per-node"; also with underscores
  std::string alias;  ///< "-r", or empty
  bool takes_value;
  bool torchruns;  ///< one of torchrun's, and so read from PET_<FLAG> too
};

/// Every flag that ddprun knows.
const std::vector<Flag>& all_flags();

/// What was said about one flag, and where: "--role", "PET_ROLE" or "job.toml: role".
struct Setting {
  std::string text;  ///< the value; "true" or "false" of a flag that takes none
  std::string source;
};

/// The command line before anything of it is interpreted.
struct CommandLine {
  std::map<std::string, Setting> settings;  ///< by the flag's name with dashes; only what was given
  std::vector<std::string> program;         ///< all words from the program's name on
};

/// Reads flags up to the first word that is none, or "--". A later mention of a flag wins over an earlier
/// one, the command line over DDPRUN_<FLAG>, that over PET_<FLAG>, that over the --config file, which may
/// also give the program. An unambiguous beginning of a flag's name will do, as with torchrun. throws
/// UsageError; IoError if the --config file cannot be read
CommandLine read_command_line(const std::vector<std::string>& words, const EnvLookup& environment);

}  // namespace ddprun::launcher
