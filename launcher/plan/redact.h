#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

/// Whether a flag or variable with this name may hold a secret: the name contains, in any case, token,
/// secret, key, password, passwd or credential.
bool is_secret_name(std::string_view name);

/// A command line with "***" for the values of such flags ("--api-key=V", "--api-key V") and variables
/// ("NAME=V"), and for passwords in URLs ("scheme://user:V@host").
std::vector<std::string> redacted(const std::vector<std::string>& arguments);

/// The same for one environment variable, "NAME=value".
std::string redacted_variable(const std::string& variable);

/// redacted() as one printable line, quoted for a shell.
std::string shown_command(const std::vector<std::string>& arguments);

}  // namespace ddprun::launcher
