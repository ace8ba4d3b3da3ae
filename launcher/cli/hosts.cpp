#include "launcher/cli/hosts.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <set>
#include <system_error>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/settings/command.h>
#include <ddprun/common/text.h>
#include "launcher/cli/options.h"
#include "launcher/rendezvous/listen.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kMostHosts = 10'000;
constexpr std::size_t kMostHostfileBytes = std::size_t{16} << 20;
/// Below the kernel's ephemeral ports, and below torchrun's defaults.
constexpr int kFirstMeetingPort = 20000, kMeetingPorts = 9000;
/// Lines of several hosts are on one terminal.
constexpr const char* kHostsPrefixTemplate = "[${hostname}:${role_name}${local_rank}]:";

std::optional<int> parse_slots(std::string_view text) { return parse_integer(text, 1, kMaxWorkersPerNode); }

bool is_user(std::string_view text) {
  return !text.empty() && text.front() != '-' && std::ranges::all_of(text, [](unsigned char c) {
    return c > ' ' && c < 127 &&
           std::string_view("@,:;'\"\\$`&|<>()[]").find(static_cast<char>(c)) == std::string_view::npos;
  });
}

/// "node1", "user@gpu[01-03]", "fe80::1"
std::optional<std::vector<Host>> parse_targets(const std::string& text, std::optional<int> slots) {
  const auto at = text.find('@');
  const std::string user = at == std::string::npos ? "" : text.substr(0, at + 1);
  const std::string name = text.substr(user.size());
  if (!user.empty() && !is_user(std::string_view(user).substr(0, at))) return {};
  if (name.find(':') != std::string::npos) {
    // Asio takes anything as an interface's name, fe80::1%eth0, and stops at NUL.
    constexpr std::string_view kOfAddress = "0123456789abcdefABCDEF:.";
    const std::string_view interface = std::string_view(name).substr(std::min(name.find('%'), name.size()));
    if (name.find_first_not_of(kOfAddress) < name.size() - interface.size()) return {};
    if (!interface.empty() && !is_user(interface)) return {};
    const auto address = parse_host(name);
    return address && *address == name ? std::optional(std::vector{Host{user + name, slots}}) : std::nullopt;
  }
  const auto names = expand_host_list(name, kMostHosts);
  if (!names) return {};
  std::vector<Host> hosts;
  for (const std::string& each : *names) {
    if (each.starts_with('-')) return {};  // ssh would take it for an option
    hosts.push_back({user + each, slots});
  }
  return hosts;
}

/// The same with ":4" behind it.
std::optional<std::vector<Host>> parse_entry(const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos || text.find(':') != colon) return parse_targets(text, {});
  const auto slots = parse_slots(std::string_view(text).substr(colon + 1));
  return slots ? parse_targets(text.substr(0, colon), slots) : std::nullopt;
}

/// The first name that occurs twice; empty: none.
std::string repeated_name(const std::vector<Host>& hosts) {
  std::set<std::string> names;
  for (const Host& host : hosts)
    if (!names.insert(host.name()).second) return host.name();
  return "";
}

std::array<unsigned char, 16> random_bytes() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw std::system_error(errno, std::generic_category(), "getrandom");
  return bytes;
}

std::string random_token() {
  std::string token;
  for (const unsigned char byte : random_bytes()) token += formatted("%02x", byte);
  return token;
}

std::vector<Host> listed_hosts(const settings::Values& values) {
  std::vector<Host> hosts;
  const std::string name = values.given("hosts") ? "hosts" : "hostfile";
  if (name == "hosts") {
    values.read("hosts", "different hosts separated by commas, such as node1,user@node2:4,gpu[01-03]",
                parse_hosts, hosts);
  } else {
    const std::string source = values.source("hostfile"), path = values.text("hostfile");
    hosts =
        parse_hostfile(for_flag(source, [&] { return read_file(path, kMostHostfileBytes); }), source, path);
  }
  const std::string repeated = repeated_name(hosts);
  if (!repeated.empty())
    values.reject(name, "each host once, but " + repeated + " is listed twice (" + repeated +
                            ":2 gives it two workers)");
  return hosts;
}

/// --exclude: those hosts get no ddprun.
void drop_excluded(const settings::Values& values, Options& options) {
  std::vector<Host>& all = options.hosts.all;
  for (const std::string& name : options.exclude)
    if (std::ranges::none_of(all, [&](const Host& host) { return is_excluded(host.name(), {name}); }))
      options.notes.push_back(values.source("exclude") + ": " + printable(name) + " is not one of the hosts");
  std::erase_if(all, [&](const Host& host) { return is_excluded(host.name(), options.exclude); });
  if (all.empty()) values.reject("exclude", "at least one of the hosts to remain");
}

void check_flags(const settings::Values& values, const std::string& flag, const HostsOptions& hosts) {
  for (const char* other : {"node-rank", "master-addr", "standalone"})
    if (values.given(other) && values.text(other) != "false")
      throw UsageError(values.source(other) + ": cannot be used with " + values.source(flag) +
                       ", which numbers the hosts and decides where they meet");
  const bool has_slots =
      std::ranges::any_of(hosts.all, [](const Host& host) { return host.slots.has_value(); });
  if (flag == "hosts" && has_slots && values.given("nproc-per-node"))
    throw UsageError(values.source("hosts") +
                     ": expected hosts without a number of workers, such as node1, with " +
                     values.source("nproc-per-node") + ", got " + single_quoted(values.text("hosts")));
}

/// The others have to reach the first host by the name that they are given.
void check_meeting_place(const settings::Values& values, const std::string& flag, const HostsOptions& hosts) {
  const std::string first = hosts.all.front().name();
  if (values.given("rdzv-endpoint") || !is_loopback(first)) return;
  for (const Host& host : hosts.all)
    if (!is_loopback(host.name()))
      values.reject(flag,
                    "a first host that " + host.name() + " can reach (on " + host.name() + ", " + first +
                        " means that machine itself; --rdzv-endpoint=HOST names the first host for all)");
}

}  // namespace

std::optional<std::vector<Host>> parse_hosts(const std::string& text) {
  std::vector<Host> hosts;
  for (const auto part : host_list_parts(text)) {
    const auto more = parse_entry(std::string(trimmed(part)));
    if (!more || more->size() > kMostHosts - hosts.size()) return {};
    hosts.insert(hosts.end(), more->begin(), more->end());
  }
  return hosts;
}

std::vector<Host> parse_hostfile(const std::string& text, const std::string& source,
                                 const std::string& path) {
  std::vector<Host> hosts;
  int number = 0;
  for (const std::string& whole : split(text, '\n')) {
    ++number;
    const std::string line(trimmed(std::string_view(whole).substr(0, whole.find('#'))));
    if (line.empty()) continue;
    const auto end = std::min(line.find_first_of(" \t"), line.size());
    auto entry = parse_entry(line.substr(0, end));
    for (const std::string& word : split(std::string(trimmed(std::string_view(line).substr(end))), ' ')) {
      const std::string setting(trimmed(word));
      if (setting.empty() || setting.starts_with("max_slots=") || setting.starts_with("max-slots=")) continue;
      const auto slots =
          setting.starts_with("slots=") ? parse_slots(std::string_view(setting).substr(6)) : std::nullopt;
      if (!slots) entry.reset();
      if (entry)
        for (Host& host : *entry) host.slots = slots;
    }
    if (!entry || entry->size() > kMostHosts - hosts.size())
      throw UsageError(source + ": line " + std::to_string(number) + " of " + single_quoted(path) +
                       ": expected HOST, HOST slots=N or HOST:N, got " + single_quoted(line));
    hosts.insert(hosts.end(), entry->begin(), entry->end());
  }
  if (hosts.empty())
    throw UsageError(source + ": expected a host in each line, got none in " + single_quoted(path));
  return hosts;
}

std::optional<std::vector<std::string>> parse_excluded(const std::string& text) {
  std::vector<std::string> names;
  for (const auto part : host_list_parts(text)) {
    const auto hosts = parse_targets(std::string(trimmed(part)), {});
    if (!hosts || hosts->size() > kMostHosts - names.size()) return {};
    for (const Host& host : *hosts) names.push_back(host.name());
  }
  return names;
}

bool is_excluded(const std::string& host, const std::vector<std::string>& excluded) {
  return std::ranges::any_of(excluded, [&](const std::string& name) {
    return name == host || name.starts_with(host + ".") || host.starts_with(name + ".");
  });
}

std::optional<std::vector<std::string>> parse_variable_names(const std::string& text) {
  std::vector<std::string> names;
  for (const std::string& word : split(text, ',')) {
    const std::string name(trimmed(word));
    const auto star = name.find('*');
    if (name.empty() || name.find('=') != std::string::npos ||
        (star != std::string::npos && star + 1 != name.size()))
      return {};
    names.push_back(name);
  }
  return names;
}

std::optional<std::vector<std::string>> parse_ssh(const std::string& text) {
  std::vector<std::string> words;
  for (const std::string& word : split(text, ' '))
    if (!trimmed(word).empty()) words.emplace_back(trimmed(word));
  return words.empty() ? std::nullopt : std::optional(words);
}

void read_hosts(const settings::Values& values, const EnvLookup& environment, const StartOrder* order,
                Options& options) {
  HostsOptions& hosts = options.hosts;
  const std::string flag = values.given("hosts") ? "hosts" : "hostfile";
  if (values.given("hosts") && values.given("hostfile"))
    throw UsageError(values.source("hostfile") + ": expected only one of this flag and " +
                     values.source("hosts"));
  if (order == nullptr && !values.given(flag)) {
    for (const char* other : {"ssh", "ssh-env", "ssh-ddprun"})
      if (values.given(other))
        options.notes.push_back(values.source(other) + " has no effect without --hosts");
    return;
  }
  if (order != nullptr) {
    hosts.all = order->hosts;
    hosts.own = order->own;
    hosts.channel = order->channel;
    hosts.port = order->port;
    hosts.token = order->token;
  } else {
    if (!environment(kJobIdVariable) && slurm_step(environment))
      throw UsageError(values.source(flag) +
                       ": cannot be used under srun, which itself starts a ddprun on each node");
    if (const auto task = mpi_task(values, environment))
      throw UsageError(values.source(flag) + ": cannot be used under " + task->launcher->name +
                       ", which itself starts " + std::to_string(task->tasks) + " ddpruns (" +
                       task->launcher->tasks + ")");
    hosts.all = listed_hosts(values);
    drop_excluded(values, options);
    check_flags(values, flag, hosts);
    check_meeting_place(values, flag, hosts);
    for (std::size_t i = 0; i < hosts.all.size() && !hosts.own; ++i)
      if (leads_to_this_host(hosts.all[i].name())) hosts.own = i;
    const auto bytes = random_bytes();
    hosts.port = kFirstMeetingPort + (bytes[0] << 8 | bytes[1]) % kMeetingPorts;
    hosts.token = read_token(values, environment);
    if (hosts.token.empty()) hosts.token = random_token();
  }
  if (hosts.own != 0U)
    options.result_json.clear(), options.events_json.clear();  // the first host writes them
  if (hosts.own && hosts.all[*hosts.own].slots && !values.given("nproc-per-node"))
    options.nproc_per_node = {WorkersWanted::Kind::kCount, *hosts.all[*hosts.own].slots};
  OutputOptions& output = options.output;
  output.other_hosts = hosts.all.size() > 1;
  if (output.other_hosts && output.prefix_template.empty()) output.prefix_template = kHostsPrefixTemplate;
  const bool on_terminal = order != nullptr ? order->prefix : ::isatty(STDOUT_FILENO) == 1;
  if (output.other_hosts && !output.prefix && on_terminal) output.prefix = true;
}

void apply_hosts(const settings::Values& values, Options& options) {
  const HostsOptions& hosts = options.hosts;
  NodesOptions& nodes = options.nodes;
  nodes.endpoint = {hosts.all.front().name(), hosts.port};
  if (values.given("rdzv-endpoint")) {
    std::optional<Endpoint> given;
    values.read(
        "rdzv-endpoint", "one HOST, HOST:PORT or [IPV6]:PORT of the first of --hosts",
        [&](const std::string& text) { return parse_endpoint(text, hosts.port); }, given);
    nodes.endpoint = *given;
  }
  nodes.is_host = hosts.own == 0U;
  nodes.token = hosts.token;
  if (options.run_id.empty()) options.run_id = kDefaultRunId;
  if (!hosts.own) return;
  nodes.node_name = hosts.all[*hosts.own].name();
  if (nodes.elastic() || nodes.spares > 0) return;
  nodes.node_rank = static_cast<int>(*hosts.own);
  for (const Host& host : hosts.all) nodes.names.push_back(host.name());
}

}  // namespace ddprun::launcher
