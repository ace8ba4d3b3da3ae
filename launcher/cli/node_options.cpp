#include "launcher/cli/node_options.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iterator>
#include <string_view>
#include <tuple>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include "launcher/cli/options.h"

namespace ddprun::launcher {
namespace {

using settings::parsed;
using settings::Setting;
using std::chrono::milliseconds;

constexpr int kStaticPort = 29500, kDynamicPort = 29400;  // torchrun's

std::optional<std::pair<int, int>> parse_node_counts(const std::string& text) {
  const auto colon = text.find(':');
  const auto low = parse_integer(text.substr(0, colon), 1, kMaxNodes);
  const auto high = colon == std::string::npos ? low : parse_integer(text.substr(colon + 1), 1, kMaxNodes);
  if (!low || !high || *low > *high) return {};
  return std::pair(*low, *high);
}

/// Whether "HOST", "HOST:PORT" or "[V6]:PORT" is this host.
bool is_local_endpoint(const std::string& endpoint) {
  const auto colon = endpoint.rfind(':');
  if (colon == std::string::npos || endpoint == "::1" || endpoint.back() == ']')
    return leads_to_this_host(endpoint);
  return parse_integer(endpoint.substr(colon + 1), 0, 65535) && leads_to_this_host(endpoint.substr(0, colon));
}

constexpr std::size_t kMaxTokenBytes = 4096;

std::string read_token_file(const std::string& source, const std::filesystem::path& path) {
  const UniqueFd fd = open_regular_file(path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw IoError(path, "cannot stat", errno);
  if ((info.st_mode & 077) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(info.st_mode & 07777));
    throw UsageError(source + ": " + single_quoted(path.string()) + " has mode " + mode +
                     ", but only its owner may have access; run chmod 600");
  }
  return read_file(fd, path, kMaxTokenBytes);
}

bool uses_etcd(const settings::Values& values) {
  return values.text("rdzv-backend") == "etcd" || values.text("rdzv-backend") == "etcd-v2";
}

/// Rejects flags that name a node other than this one.
void check_single_node(const settings::Values& values, bool file_store) {
  using Check = bool (*)(const std::string& value);
  const auto expect = [&](const std::string& name, const std::string& expected, Check right) {
    if (values.given(name) && !right(values.text(name)))
      values.reject(name, expected + " for one node (set --nnodes for more)");
  };
  expect("node-rank", "0", [](const std::string& value) { return value == "0"; });
  if (!file_store && !uses_etcd(values) && !values.is_true("standalone"))  // it overrides it, as in torchrun
    expect("rdzv-endpoint", "localhost[:PORT] or this host's name", is_local_endpoint);
  expect("master-addr", "localhost or this host's name", leads_to_this_host);
}

void note_single_node(const settings::Values& values, std::vector<std::string>& notes) {
  if (uses_etcd(values) && !values.is_true("standalone"))
    notes.push_back(values.source("rdzv-backend") + ": etcd is not used on a single node");
  if (values.is_true("standalone") && values.given("nnodes") && values.text("nnodes") != "1" &&
      values.text("nnodes") != "1:1")
    notes.push_back(values.source("nnodes") + " has no effect: --standalone means one node");
  for (const char* name :
       {"local-addr", "rdzv-conf", "join-timeout", "last-call", "node-timeout", "token-file", "spares"})
    if (values.given(name) && !(values.given("metrics-port") && name == std::string_view("token-file")))
      notes.push_back(values.source(name) + " has no effect on a single node");
}

/// KEY and VALUE, KEY and VALUE, ... of --rdzv-conf. throws UsageError
std::vector<std::pair<std::string, std::string>> split_conf(const settings::Values& values) {
  std::vector<std::pair<std::string, std::string>> pairs;
  const std::string conf = values.text("rdzv-conf");
  const std::string_view text = trimmed(conf, " \t'\"");
  if (text.empty()) return pairs;
  for (const std::string& word : split(text, ',')) {
    const auto equals = word.find('=');
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    pairs.emplace_back(trimmed(word.substr(0, equals)), trimmed(value));
    if (pairs.back().first.empty() || pairs.back().second.empty())
      values.reject("rdzv-conf", "KEY=VALUE,KEY=VALUE,...");
  }
  return pairs;
}

bool wants_file_store(const settings::Values& values) {
  const auto conf = split_conf(values);
  return std::ranges::find(conf, std::pair<std::string, std::string>("store_type", "file")) != conf.end();
}

/// The user's name for the only node, for MASTER_ADDR; empty if none or "localhost", whose lookup may fail.
std::string own_name(const settings::Values& values) {
  std::optional<std::string> host;
  if (values.given("master-addr")) {
    host = parse_host(values.text("master-addr"));
  } else if (const auto endpoint = parse_endpoint(values.text("rdzv-endpoint"), kStaticPort);
             endpoint && !uses_etcd(values)) {
    host = endpoint->host;
  }
  return host.value_or("localhost") == "localhost" ? "" : *host;
}

/// Adds one KEY=VALUE of --rdzv-conf; notes keys that have no effect here.
void add_conf(const std::string& key, const std::string& value, const std::vector<Setting>& keys,
              const settings::Values& values, settings::Values& conf, std::vector<std::string>& notes) {
  const std::string source = values.source("rdzv-conf") + ": " + printable(key);
  std::vector<std::string> names;
  for (const Setting& setting : keys) {
    if (setting.name == key) return conf.add(setting, {value, source});
    names.push_back(setting.name);
  }
  for (const char* idle : {"read_timeout", "close_timeout", "heartbeat_timeout", "cas_backoff_max_seconds",
                           "store_type", "use_libuv", "rank"})
    if (key == idle) return notes.push_back(source + " has no effect: the nodes have no store between them");
  notes.push_back(source + " has no effect: expected " + one_of(names));
}

/// --rdzv-conf: KEY=VALUE,..., with the keys of torchrun's back ends. Flags with the same meaning win.
void read_conf(const settings::Values& values, Options& options, EtcdConf& etcd) {
  NodesOptions& nodes = options.nodes;
  const NodesOptions by_flags = nodes;
  milliseconds interval = std::chrono::seconds(5);  // torchrun's
  int attempts = 3;
  std::vector<Setting> keys = {
      settings::seconds("timeout", nodes.join_timeout, seconds_from(1)),
      settings::seconds("join_timeout", nodes.join_timeout, seconds_from(1)),
      settings::seconds("last_call_timeout", nodes.last_call, seconds_from(0)),
      settings::seconds("keep_alive_interval", interval, seconds_from(0)),
      settings::integer("keep_alive_max_attempt", attempts, 0, 1'000'000, ""),
      parsed("is_host", nodes.is_host, parse_truth, "true or false"),
  };
  if (uses_etcd(values)) std::ranges::move(etcd_conf_keys(etcd), std::back_inserter(keys));
  settings::Values conf;
  for (const auto& [key, value] : split_conf(values)) add_conf(key, value, keys, values, conf, options.notes);
  conf.apply(keys);
  if (conf.given("keep_alive_interval") || conf.given("keep_alive_max_attempt")) {
    nodes.node_timeout = interval * attempts;
    if (nodes.node_timeout < std::chrono::seconds(1) || nodes.node_timeout > std::chrono::seconds(1'000'000))
      values.reject("rdzv-conf", "1 to 1000000 seconds for keep_alive_interval times keep_alive_max_attempt");
  }
  if (values.given("join-timeout")) nodes.join_timeout = by_flags.join_timeout;
  if (values.given("last-call")) nodes.last_call = by_flags.last_call;
  if (values.given("node-timeout")) nodes.node_timeout = by_flags.node_timeout;
}

/// --rdzv-endpoint, or else --master-addr; if both are given, they must agree. Empty: neither is given
std::vector<Endpoint> read_endpoints(const settings::Values& values, int default_port) {
  std::optional<std::string> master;
  values.read("master-addr", "a host's name or address", parse_host, master);
  if (!values.given("rdzv-endpoint"))
    return master ? std::vector{Endpoint{*master, default_port}} : std::vector<Endpoint>();
  std::vector<Endpoint> endpoints;
  values.read(
      "rdzv-endpoint",
      "HOST, HOST:PORT or [IPV6]:PORT with a port from 1 to 65535, or several different ones, separated by "
      "commas",
      [&](const std::string& text) { return parse_endpoints(text, default_port); }, endpoints);
  for (const Endpoint& endpoint : endpoints)
    if (endpoint.host == "0.0.0.0" || endpoint.host == "::")
      values.reject("rdzv-endpoint", "a host's name or an address of one host");
  if (master && *master != endpoints.front().host)
    values.reject("rdzv-endpoint",
                  "the host of --master-addr, " + single_quoted(*master) + ", or only one of the two flags");
  return endpoints;
}

/// Node rank 0 runs the coordinator, at --master-port.
void read_static(const settings::Values& values, Options& options) {
  NodesOptions& nodes = options.nodes;
  const auto endpoints = read_endpoints(values, options.master_port.value_or(kStaticPort));
  if (endpoints.empty())
    throw UsageError(
        values.source("nnodes") +
        ": several nodes need --rdzv-endpoint=HOST[:PORT], or --master-addr=HOST with --node-rank; got " +
        (nodes.node_rank ? "only --node-rank" : "neither"));
  if (endpoints.size() > 1) values.reject("rdzv-endpoint", "one endpoint, unless --rdzv-backend is c10d");
  nodes.endpoint = endpoints.front();
  const int port = nodes.endpoint.port;
  if (options.master_port && *options.master_port != port)
    values.reject("master-port", "the port of --rdzv-endpoint, " + std::to_string(port) + ", or none");
  if (nodes.spares > 0)
    values.reject("spares", "0, or --rdzv-backend=c10d with --rdzv-endpoint, where no node needs a rank");
  // A job that nodes may join while it runs needs the port for itself.
  nodes.port_is_workers = nodes.min_nodes == nodes.max_nodes;
  options.master_port = nodes.port_is_workers ? std::optional(port) : std::nullopt;
  if (!nodes.node_rank)
    throw UsageError(values.source(values.given("master-addr") ? "master-addr" : "rdzv-backend") +
                     ": expected --node-rank as well, from 0 to " + std::to_string(nodes.max_nodes - 1) +
                     ", got none");
  const bool hosts = *nodes.node_rank == 0;
  if (nodes.is_host.value_or(hosts) != hosts)
    values.reject("rdzv-conf", std::string("is_host=") + (hosts ? "true" : "false") + " on node rank " +
                                   std::to_string(*nodes.node_rank));
  nodes.is_host = hosts;
}

/// The endpoint's host runs the coordinator; nodes get ranks when they join.
void read_dynamic(const settings::Values& values, Options& options) {
  if (!values.given("rdzv-endpoint"))
    throw UsageError(values.source("rdzv-backend") +
                     ": expected --rdzv-endpoint=HOST:PORT with c10d, got none");
  const auto endpoints = read_endpoints(values, kDynamicPort);
  options.nodes.endpoint = endpoints.front();
  options.nodes.successors.assign(endpoints.begin() + 1, endpoints.end());
}

/// How many nodes the hosts make; by default one each, but for the spares.
std::pair<int, int> check_host_count(const settings::Values& values, const Options& options,
                                     std::pair<int, int> wanted) {
  const int hosts = static_cast<int>(options.hosts.all.size()), spares = options.nodes.spares;
  if (spares > 0 && hosts - spares < 2)
    values.reject("spares", "0 or a number that leaves at least two hosts for the job");
  if (!values.given("nnodes")) return {hosts - spares, hosts - spares};
  if (wanted.second + spares != hosts)
    values.reject("nnodes", std::to_string(hosts - spares) + " or MIN:" + std::to_string(hosts - spares) +
                                ", one for each of the " + std::to_string(hosts) + " hosts" +
                                (spares > 0 ? " except the spares" : ""));
  return wanted;
}

void read_several(const settings::Values& values, const EnvLookup& environment,
                  const std::optional<SlurmStep>& step, const std::optional<MpiTask>& task,
                  Options& options) {
  NodesOptions& nodes = options.nodes;
  EtcdConf etcd;
  read_conf(values, options, etcd);
  values.read("local-addr", "a host's name or address", parse_host, nodes.local_addr);
  values.read(
      "node-rank",
      "a number from 0 to " + std::to_string(nodes.max_nodes - 1) + " (--nnodes=" + values.text("nnodes") +
          ")",
      [&](const std::string& text) { return parse_integer(text, 0, nodes.max_nodes - 1); }, nodes.node_rank);
  if (uses_etcd(values) && (task || !options.hosts.all.empty()))
    values.reject("rdzv-backend", std::string("no etcd with ") + (task ? task->launcher->name : "--hosts") +
                                      ", where all nodes end when the first one ends");
  if (!options.hosts.all.empty()) return apply_hosts(values, options);
  nodes.token = read_token(values, environment);
  if (step && !uses_etcd(values)) return apply_step(*step, values, options);
  if (task) {
    const int port = task->job ? derived_port(*task->job) : kDynamicPort;
    return apply_task(*task, values, environment, read_endpoints(values, port), port, options);
  }
  if (options.run_id.empty()) options.run_id = kDefaultRunId;
  if (wants_file_store(values))
    throw UsageError(values.source("rdzv-conf") +
                     ": store_type=file is not supported; use --rdzv-endpoint=HOST:PORT, "
                     "where the nodes meet over TCP");
  if (uses_etcd(values)) return read_etcd(values, environment, etcd, options);
  const std::string backend = values.text("rdzv-backend");
  if (backend == "static" || (backend.empty() && !values.given("rdzv-endpoint"))) {
    read_static(values, options);
  } else {
    read_dynamic(values, options);
  }
}

/// --exclude where the user or srun starts a ddprun on each node. Sets options.excluded.
void apply_exclude(const settings::Values& values, std::optional<SlurmStep>& step,
                   const std::optional<MpiTask>& task, int max_nodes, Options& options) {
  const std::string source = values.source("exclude");
  if (task)
    throw UsageError(source + ": cannot be used under " + task->launcher->name +
                     ", whose own flags choose the hosts");
  if (step) {
    drop_excluded(*step, values, options);
    if (step->tasks == 1 && !options.excluded) step.reset();  // as if srun had started only this one
    return;
  }
  options.excluded = std::ranges::any_of(options.exclude, is_this_host);
  if (max_nodes == 1) {
    if (options.excluded) values.reject("exclude", "hosts other than this one, where the whole job runs,");
    return;
  }
  const std::string meeting =
      values.given("rdzv-endpoint") ? values.text("rdzv-endpoint") : values.text("master-addr");
  auto endpoints = parse_endpoints(meeting, kDynamicPort).value_or(std::vector<Endpoint>());
  if (uses_etcd(values)) endpoints.clear();  // those are not nodes
  const auto is_out = [&](const Endpoint& endpoint) {
    return is_excluded(endpoint.host, options.exclude) || (options.excluded && is_this_host(endpoint.host));
  };
  if (!endpoints.empty() && std::ranges::all_of(endpoints, is_out))
    values.reject("exclude", "hosts other than " + printable(endpoints[0].host) + ", where the nodes meet,");
  if (options.excluded && values.given("node-rank"))
    values.reject("exclude", "hosts other than this one, for which the others wait as node rank " +
                                 printable(values.text("node-rank")) +
                                 " (number the remaining nodes from 0, and count only them in --nnodes),");
}

}  // namespace

std::string read_token(const settings::Values& values, const EnvLookup& environment) {
  const bool of_file = values.given("token-file");
  const std::string source = of_file ? values.source("token-file") : kTokenVariable;
  const std::string text =
      of_file ? for_flag(source, [&] { return read_token_file(source, values.text("token-file")); })
              : environment(kTokenVariable).value_or("");
  std::string token(trimmed(text));
  if (token.empty() && (of_file || !text.empty()))
    throw UsageError(source + ": expected a token, got nothing but white space" +
                     (of_file ? " in " + single_quoted(values.text("token-file")) : ""));
  return token;
}

settings::Range seconds_from(int low) {
  return {double(low), 1e6, false, "seconds from " + std::to_string(low) + " to 1000000, such as 30 or 1.5"};
}

void read_nodes(const settings::Values& values, const EnvLookup& environment, Options& options) {
  NodesOptions& nodes = options.nodes;
  std::pair<int, int> counts{1, 1};
  values.read("nnodes", "N or MIN:MAX with 1 <= MIN <= MAX <= " + std::to_string(kMaxNodes),
              parse_node_counts, counts);
  const bool standalone = values.is_true("standalone");
  const auto task = mpi_task(values, environment);
  auto step = task ? std::nullopt : job_step(values, environment);
  if (!options.exclude.empty() && options.hosts.all.empty())
    apply_exclude(values, step, task, standalone ? 1 : counts.second, options);
  if (options.excluded) return;
  if (task) {
    if (task->tasks - nodes.spares < 2)
      values.reject("spares", "at most " + std::to_string(task->tasks - 2) + " of " +
                                  std::to_string(task->tasks) + " tasks (" + task->launcher->tasks + ")");
    counts = {task->tasks - nodes.spares, task->tasks - nodes.spares};
  } else if (step) {
    if (nodes.spares > 0) check_spares(*step, values, nodes.spares);
    counts = {step->tasks - nodes.spares, step->tasks - nodes.spares};
  }
  if (!options.hosts.all.empty()) counts = check_host_count(values, options, counts);
  if (!standalone) std::tie(nodes.min_nodes, nodes.max_nodes) = counts;
  if (!standalone && values.given("rdzv-backend") && values.text("rdzv-backend") != "c10d" &&
      values.text("rdzv-backend") != "static" && !uses_etcd(values))
    values.reject("rdzv-backend", "c10d, static or etcd");
  if (nodes.several()) return read_several(values, environment, step, task, options);
  check_single_node(values, wants_file_store(values));
  if (!standalone) nodes.endpoint.host = own_name(values);
  // A mistake in it is one here, too. Another host's file is not here.
  if (options.hosts.all.empty() && values.given("token-file")) read_token(values, environment);
  note_single_node(values, options.notes);
  note_idle_nodes(values, environment, options);
}

}  // namespace ddprun::launcher
