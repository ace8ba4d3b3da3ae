#include "launcher/remote/start_order.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/launch_command.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include "launcher/cli/node_options.h"
#include "launcher/events/launch_error.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kMostOrderBytes = std::size_t{32} << 20;

// What sets up Python, libraries and communication on this host most likely does so on the others.
constexpr const char* kForOthers[] = {"PATH",    "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_*",
                                      "PYTHON*", "OMP_*",           "NCCL_*",      "UCX_*",
                                      "TORCH_*", "LOGLEVEL",        "PET_*",       "DDPRUN_*"};
/// Belong to one host, process or job, or are secret.
constexpr const char* kNotForOthers[] = {kTokenVariable,    kJobIdVariable,   kSharedJobIdVariable,
                                         kLauncherVariable, kCommandVariable, "DDPRUN_CONTROL_DIR",
                                         "DDPRUN_ROUND"};

bool is_named(std::string_view name, std::string_view pattern) {
  return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1)) : name == pattern;
}

/// For sh; csh and fish read it the same way, unless there is a '!' or a newline in it.
std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

[[noreturn]] void refuse() {
  throw UsageError(std::string(kStartedOverSsh) + ": only ddprun starts ddprun like this (--hosts)");
}

/// From standard input; without those bytes it ends.
std::string read_exactly(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t done = 0; done < size;) {
    const ssize_t n = TEMP_FAILURE_RETRY(::read(STDIN_FILENO, bytes.data() + done, size - done));
    if (n <= 0) refuse();
    done += static_cast<std::size_t>(n);
  }
  return bytes;
}

}  // namespace

std::string encode_order(const StartOrder& order) {
  nlohmann::json hosts = nlohmann::json::array();
  for (const Host& host : order.hosts) hosts.push_back({host.target, host.slots.value_or(0)});
  // CBOR, for folders and words may be no UTF-8.
  const nlohmann::json whole{{"hosts", hosts},
                             {"own", order.own},
                             {"port", order.port},
                             {"token", order.token},
                             {"prefix", order.prefix},
                             {"folder", order.folder},
                             {"environment", order.environment},
                             {"words", order.words}};
  const auto bytes = nlohmann::json::to_cbor(whole);
  return std::to_string(bytes.size()) + "\n" + std::string(bytes.begin(), bytes.end());
}

std::optional<StartOrder> decode_order(const std::string& bytes) try {
  const nlohmann::json whole = nlohmann::json::from_cbor(bytes);
  StartOrder order;
  for (const nlohmann::json& host : whole.at("hosts")) {
    const int slots = host.at(1).get<int>();
    order.hosts.push_back({host.at(0).get<std::string>(), slots > 0 ? std::optional(slots) : std::nullopt});
  }
  whole.at("own").get_to(order.own);
  whole.at("port").get_to(order.port);
  whole.at("token").get_to(order.token);
  whole.at("prefix").get_to(order.prefix);
  whole.at("folder").get_to(order.folder);
  whole.at("environment").get_to(order.environment);
  whole.at("words").get_to(order.words);
  if (order.own >= order.hosts.size() || order.token.empty()) return {};
  return order;
} catch (const nlohmann::json::exception&) {
  return {};
}

StartOrder receive_order() {
  std::string digits;
  for (std::string c; (c = read_exactly(1)) != "\n"; digits += c)
    if (digits.size() > 9) refuse();
  const auto size = parse_integer<std::size_t>(digits, 1, kMostOrderBytes);
  auto order = size ? decode_order(read_exactly(*size)) : std::nullopt;
  if (!order) refuse();
  order->channel = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const UniqueFd dev_null = open_dev_null(O_RDONLY);
  if (order->channel < 0 || ::dup2(dev_null.get(), STDIN_FILENO) < 0)
    throw std::system_error(errno, std::generic_category(), "standard input");
  if (::chdir(order->folder.c_str()) != 0)
    throw LaunchError(LaunchError::kOwnFailure,
                      "cannot work in the folder " + printable(order->folder) + ": " + std::strerror(errno));
  ::setenv("PWD", order->folder.c_str(), 1);
  for (const std::string& variable : order->environment) {
    const auto equals = std::min(variable.find('='), variable.size() - 1);
    const std::string name = variable.substr(0, equals), here = process_env(name).value_or("");
    std::string value = variable.substr(equals + 1);
    if (name == "PATH" && !here.empty()) value += ":" + here;  // programs that are only here are found, too
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  return *std::move(order);
}

std::vector<std::string> environment_for_others(const std::vector<std::string>& environment,
                                                const std::vector<std::string>& named) {
  std::vector<std::string> chosen;
  for (const std::string& variable : environment) {
    const std::string_view name = std::string_view(variable).substr(0, variable.find('='));
    const auto matches = [&](std::string_view pattern) { return is_named(name, pattern); };
    if (std::ranges::any_of(kNotForOthers, matches) ||
        (name.starts_with("DDPRUN_") && name.ends_with("_FD")) || name.size() == variable.size() ||
        name.empty())
      continue;
    if (std::ranges::any_of(kForOthers, matches) || std::ranges::any_of(named, matches))
      chosen.push_back(variable);
  }
  return chosen;
}

std::string remote_command(const std::vector<std::string>& ddpruns) {
  std::string command =
      std::string("exec /bin/sh -c 'for d do command -v \"$d\" >/dev/null 2>&1 && exec \"$d\" ") +
      kStartedOverSsh +
      "; done; echo \"there is no ddprun at $1 or on the PATH (--ssh-ddprun)\" >&2; exit 125' sh";
  for (const std::string& ddprun : ddpruns) command += " " + quoted(ddprun);
  return command;
}

std::vector<std::string> ssh_command(const HostsOptions& hosts, const Host& host) {
  std::vector<std::string> words = hosts.ssh;
  if (std::filesystem::path(words[0]).filename() == "ssh")
    for (const char* option :
         {"BatchMode=yes", "ConnectTimeout=30", "ServerAliveInterval=15", "RequestTTY=no", "ControlMaster=no",
          "ClearAllForwardings=yes", "RemoteCommand=none"}) {
      words.emplace_back("-o");
      words.emplace_back(option);
    }
  words.push_back(host.target);
  std::vector<std::string> ddpruns{hosts.ddprun};
  if (hosts.ddprun.empty()) {
    std::error_code error;
    ddpruns = {std::filesystem::read_symlink("/proc/self/exe", error).string(), "ddprun"};
  }
  words.push_back(remote_command(ddpruns));
  return words;
}

}  // namespace ddprun::launcher
