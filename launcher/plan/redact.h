#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

/// True if a flag or variable of this name may hold what nobody else should read: its name contains, in any
/// case, token, secret, key, password, passwd or credential. Rather too many than one too few.
bool is_secret_name(std::string_view name);

/// A command line that can be shown: the values of such flags ("--api-key=V", "--api-key V") and variables
/// ("NAME=V"), and passwords in URLs ("scheme://user:V@host"), are "***".
std::vector<std::string> redacted(const std::vector<std::string>& arguments);

/// The same for one variable of an environment, given as "NAME=value".
std::string redacted_variable(const std::string& variable);

/// redacted() as one line that a shell would read as the same words, printable on a terminal.
std::string shown_command(const std::vector<std::string>& arguments);

}  // namespace ddprun::launcher
