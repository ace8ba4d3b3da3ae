#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/cli/hosts.h"

namespace ddprun::launcher {

/// ddprun's only word if another host's ddprun starts it over ssh: the rest follows on its standard input.
inline constexpr char kStartedOverSsh[] = "--started-over-ssh";

/// The line on stderr with which it says that it has read its order and understood it. What comes before is
/// ssh's, or the remote shell's.
inline constexpr char kStartedLine[] = "ddprun: started over ssh\n";

std::string encode_order(const StartOrder& order);
/// nullopt: this is no order
std::optional<StartOrder> decode_order(const std::string& bytes);

/// Reads the order from standard input, which is /dev/null from then on, goes to its folder, and sets its
/// variables.
///
/// throws  UsageError if there is none, LaunchError if the folder cannot be used
StartOrder receive_order();

/// The variables ("NAME=value") that other hosts get as well: those which say how to find and set up Python,
/// NCCL and the like, ddprun's flags, and those named: names, or beginnings with a '*'. None that is only
/// this host's, and not the token.
std::vector<std::string> environment_for_others(const std::vector<std::string>& environment,
                                                const std::vector<std::string>& named);

/// What sh, csh, or fish runs on the other host: the first of these ddpruns that is there.
std::string remote_command(const std::vector<std::string>& ddpruns);

/// The command that starts ddprun on a host. OpenSSH gets options, after the user's, which win: it must not
/// ask for anything, wait for a silent host for ever, or leave a process that shares the connection.
std::vector<std::string> ssh_command(const HostsOptions& hosts, const Host& host);

}  // namespace ddprun::launcher
