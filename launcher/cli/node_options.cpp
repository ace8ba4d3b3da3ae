#include "launcher/cli/node_options.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "launcher/cli/option_values.h"
#include "launcher/cli/options.h"
#include "launcher/cli/settings.h"
#include "launcher/cli/slurm_options.h"
#include "launcher/cli/token.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;

constexpr int kStaticPort = 29500, kDynamicPort = 29400;  // torchrun's
const std::string kPort = "a port from 1 to 65535";

std::optional<std::pair<int, int>> parse_node_counts(const std::string& text) {
  const auto colon = text.find(':');
  const auto low = whole_number(text.substr(0, colon), 1, kMaxNodes);
  const auto high = colon == std::string::npos ? low : whole_number(text.substr(colon + 1), 1, kMaxNodes);
  if (!low || !high || *low > *high) return {};
  return std::pair(*low, *high);
}

std::optional<milliseconds> parse_positive_seconds(const std::string& text) {
  const auto time = parse_seconds(text);
  return time && *time >= std::chrono::seconds(1) ? time : std::nullopt;
}

void read_timeouts(const Settings& settings, NodesOptions& nodes) {
  const std::string expected = "seconds from 1 to 1000000, such as 30 or 1.5";
  settings.read("--join-timeout", expected, parse_positive_seconds, nodes.join_timeout);
  settings.read("--node-timeout", expected, parse_positive_seconds, nodes.node_timeout);
  settings.read("--last-call", "seconds from 0 to 1000000, such as 30 or 1.5", parse_seconds,
                nodes.last_call);
}

/// The values that are left for one node.
void check_single_node(const Settings& settings) {
  using Check = bool (*)(const std::string& value);
  const auto expect = [&](const std::string& name, const std::string& expected, Check right) {
    if (settings.given(name) && !right(settings.text(name)))
      settings.reject(name, expected + " for one node (--nnodes gives more)");
  };
  expect("--node-rank", "0", [](const std::string& value) { return value == "0"; });
  if (!settings.is_true("--standalone"))  // which sets it aside, as it does in torchrun
    expect("--rdzv-endpoint", "localhost[:PORT] or this host's name", is_local_endpoint);
  expect("--master-addr", "localhost or this host's name", is_this_host);
}

void note_single_node(const Settings& settings, std::vector<std::string>& notes) {
  if (settings.is_true("--standalone") && settings.given("--nnodes") && settings.text("--nnodes") != "1" &&
      settings.text("--nnodes") != "1:1")
    notes.push_back(settings.source("--nnodes") + " has no effect: --standalone is one node");
  for (const char* name :
       {"--local-addr", "--rdzv-conf", "--join-timeout", "--last-call", "--node-timeout", "--token-file"})
    if (settings.given(name))
      notes.push_back(settings.source(name) + " has no effect: one node has no others to find");
}

/// --rdzv-conf: KEY=VALUE,...
class RendezvousConf {
 public:
  explicit RendezvousConf(const Settings& settings) : settings_(settings) {
    const std::string text = settings.text("--rdzv-conf");
    for (std::size_t begin = 0; !text.empty() && begin <= text.size();) {
      const auto end = std::min(text.find(',', begin), text.size());
      const std::string word = text.substr(begin, end - begin);
      const auto equals = word.find('=');
      if (equals == std::string::npos || equals == 0 || equals + 1 == word.size())
        settings.reject("--rdzv-conf", "KEY=VALUE,KEY=VALUE,...");
      values_[word.substr(0, equals)] = word.substr(equals + 1);
      begin = end + 1;
    }
  }

  bool given(const std::string& key) const { return values_.count(key) > 0; }
  const std::map<std::string, std::string>& values() const { return values_; }

  template <typename Parse, typename Target>
  void read(const std::string& key, const std::string& expected, Parse parse, Target& target) const {
    if (!given(key)) return;
    auto value = parse(values_.at(key));
    if (!value) settings_.reject("--rdzv-conf", expected + " for " + key);
    target = *value;
  }

 private:
  const Settings& settings_;
  std::map<std::string, std::string> values_;
};

std::optional<bool> parse_truth(const std::string& text) {
  for (const char* word : {"1", "true", "True", "t", "yes", "y"})
    if (text == word) return true;
  for (const char* word : {"0", "false", "False", "f", "no", "n"})
    if (text == word) return false;
  return {};
}

void note_conf(const Settings& settings, const RendezvousConf& conf, std::vector<std::string>& notes) {
  static const std::vector<std::string> used = {"join_timeout",        "timeout", "last_call_timeout",
                                                "keep_alive_interval", "is_host", "keep_alive_max_attempt"};
  static const std::vector<std::string> idle = {"read_timeout", "close_timeout", "heartbeat_timeout",
                                                "store_type",   "use_libuv",     "rank"};
  const auto contains = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const auto& [key, value] : conf.values()) {
    if (contains(used, key)) continue;
    if (!contains(idle, key))
      throw UsageError(settings.source("--rdzv-conf") + ": expected " + used[0] + ", " + used[1] + ", " +
                       used[2] + ", " + used[3] + ", " + used[5] + " or " + used[4] + ", got " + quoted(key));
    notes.push_back(settings.source("--rdzv-conf") + ": " + key +
                    " has no effect: the nodes have no store between them");
  }
}

/// The keys of torchrun's back ends, as far as they have a meaning here.
void read_conf(const Settings& settings, Options& options) {
  const RendezvousConf conf(settings);
  note_conf(settings, conf, options.notes);
  NodesOptions& nodes = options.nodes;
  const std::string expected = "seconds from 1 to 1000000";
  conf.read("timeout", expected, parse_positive_seconds, nodes.join_timeout);
  conf.read("join_timeout", expected, parse_positive_seconds, nodes.join_timeout);
  conf.read("last_call_timeout", "seconds from 0 to 1000000", parse_seconds, nodes.last_call);
  conf.read("is_host", "true or false", parse_truth, nodes.is_host);
  if (conf.given("keep_alive_interval") || conf.given("keep_alive_max_attempt")) {
    milliseconds interval = std::chrono::seconds(5);  // torchrun's
    int attempts = 3;
    conf.read("keep_alive_interval", "seconds from 0 to 1000000", parse_seconds, interval);
    conf.read("keep_alive_max_attempt", "a number from 0 to 1000000", parse_count, attempts);
    nodes.node_timeout = interval * attempts;
    if (nodes.node_timeout < std::chrono::seconds(1) || nodes.node_timeout > std::chrono::seconds(1'000'000))
      settings.reject("--rdzv-conf",
                      "1 to 1000000 seconds for keep_alive_interval times keep_alive_max_attempt");
  }
}

/// --rdzv-endpoint, or else --master-addr; both may say the same. none: neither is given
std::optional<Endpoint> read_endpoint(const Settings& settings, int default_port) {
  std::optional<std::string> master;
  settings.read("--master-addr", "a host's name or address", parse_host, master);
  if (!settings.given("--rdzv-endpoint"))
    return master ? std::optional(Endpoint{*master, default_port}) : std::nullopt;
  Endpoint endpoint;
  settings.read(
      "--rdzv-endpoint", "HOST, HOST:PORT or [IPV6]:PORT with a port from 1 to 65535",
      [&](const std::string& text) { return parse_endpoint(text, default_port); }, endpoint);
  if (endpoint.host == "0.0.0.0" || endpoint.host == "::")
    settings.reject("--rdzv-endpoint", "a host's name or an address of one host");
  if (master && *master != endpoint.host)
    settings.reject("--rdzv-endpoint",
                    "the host of --master-addr, " + ddprun::quoted(*master) + ", or only one of both");
  return endpoint;
}

/// Node rank 0 runs the coordinator, where everybody expects it; the port is the coordinator's.
void read_static(const Settings& settings, Options& options) {
  NodesOptions& nodes = options.nodes;
  const auto endpoint = read_endpoint(settings, options.master_port.value_or(kStaticPort));
  if (!endpoint)
    throw UsageError(settings.source("--nnodes") + ": expected with several nodes --rdzv-endpoint=HOST:PORT" +
                     ", or --master-addr=HOST and --node-rank, got neither");
  nodes.endpoint = *endpoint;
  if (options.master_port && *options.master_port != endpoint->port)
    settings.reject("--master-port",
                    "the port of --rdzv-endpoint, " + std::to_string(endpoint->port) + ", or none");
  options.master_port.reset();
  if (!nodes.node_rank)
    throw UsageError(settings.source(settings.given("--master-addr") ? "--master-addr" : "--rdzv-backend") +
                     ": expected --node-rank with it, from 0 to " + std::to_string(nodes.max_nodes - 1) +
                     ", got none");
  const bool hosts = *nodes.node_rank == 0;
  if (nodes.is_host.value_or(hosts) != hosts)
    settings.reject("--rdzv-conf", std::string("is_host=") + (hosts ? "true" : "false") + " on node rank " +
                                       std::to_string(*nodes.node_rank));
  nodes.is_host = hosts;
}

/// The host of the endpoint runs the coordinator; the nodes have ranks as they come.
void read_dynamic(const Settings& settings, Options& options) {
  if (!settings.given("--rdzv-endpoint"))
    throw UsageError(settings.source("--rdzv-backend") +
                     ": expected --rdzv-endpoint=HOST:PORT with c10d, got none");
  options.nodes.endpoint = *read_endpoint(settings, kDynamicPort);
}

/// step   none: the flags say where the nodes meet
void read_several(const Settings& settings, const EnvLookup& environment,
                  const std::optional<SlurmStep>& step, Options& options) {
  NodesOptions& nodes = options.nodes;
  read_conf(settings, options);
  read_timeouts(settings, nodes);  // after --rdzv-conf, which they win over
  settings.read("--local-addr", "a host's name or address", parse_host, nodes.local_addr);
  settings.read(
      "--node-rank",
      "a number from 0 to " + std::to_string(nodes.max_nodes - 1) +
          " (--nnodes=" + settings.text("--nnodes") + ")",
      [&](const std::string& text) { return whole_number(text, 0, nodes.max_nodes - 1); }, nodes.node_rank);
  nodes.token = read_token(settings, environment);
  if (step) return apply_step(*step, settings, options);
  if (options.run_id.empty()) options.run_id = "none";
  const std::string backend = settings.text("--rdzv-backend");
  if (backend == "static" || (backend.empty() && !settings.given("--rdzv-endpoint"))) {
    read_static(settings, options);
  } else {
    read_dynamic(settings, options);
  }
}

}  // namespace

void read_nodes(const Settings& settings, const EnvLookup& environment, Options& options) {
  NodesOptions& nodes = options.nodes;
  std::pair<int, int> counts{1, 1};
  settings.read("--nnodes", "N or MIN:MAX, from 1 to " + std::to_string(kMaxNodes), parse_node_counts,
                counts);
  const bool standalone = settings.is_true("--standalone");
  const auto step = job_step(settings, environment);
  if (step) counts = {step->tasks, step->tasks};
  if (!standalone) std::tie(nodes.min_nodes, nodes.max_nodes) = counts;
  settings.read("--master-port", kPort, parse_port, options.master_port);
  if (!standalone && settings.given("--rdzv-backend") && settings.text("--rdzv-backend") != "c10d" &&
      settings.text("--rdzv-backend") != "static")
    settings.reject("--rdzv-backend", "c10d or static");
  if (nodes.several()) return read_several(settings, environment, step, options);
  read_timeouts(settings, nodes);
  check_single_node(settings);
  note_single_node(settings, options.notes);
  note_idle_nodes(settings, environment, options);
}

}  // namespace ddprun::launcher
