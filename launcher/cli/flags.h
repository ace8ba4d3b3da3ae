#pragma once

#include <string>
#include <vector>

#include <ddprun/common/settings/command.h>
#include "launcher/cli/options.h"

namespace ddprun::launcher {

/// Every flag of ddprun. Those whose meaning does not depend on others set the options, which must outlive
/// the result; the others are only named.
settings::Command make_command(Options& options);

/// What was given, before it is interpreted.
struct CommandLine {
  settings::Values values;
  std::vector<std::string> program;  ///< all words from the program's name on
};

/// Reads flags up to the first word that is not one, or "--". The command line wins over DDPRUN_<FLAG>, that
/// over PET_<FLAG> (torchrun's flags only), and that over the --config file, which may also give the program.
/// throws UsageError; IoError if the --config file cannot be read
CommandLine read_command_line(const std::vector<std::string>& words, const EnvLookup& environment,
                              const settings::Command& command);

}  // namespace ddprun::launcher
