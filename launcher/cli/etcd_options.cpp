#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include "launcher/cli/node_options.h"
#include "launcher/cli/options.h"

// --rdzv-backend=etcd: where etcd is, and how to reach it. torchrun's keys of --rdzv-conf come first, then
// etcdctl's variables.

namespace ddprun::launcher {
namespace {

using settings::Setting;

constexpr int kEtcdPort = 2379;

/// One endpoint, with its scheme if it has one.
struct EtcdAddress {
  std::string scheme;
  Endpoint endpoint;
};

std::optional<EtcdAddress> parse_address(const std::string& text) {
  EtcdAddress address;
  const auto end = text.find("://");
  if (end != std::string::npos) address.scheme = text.substr(0, end);
  if (end != std::string::npos && address.scheme != "http" && address.scheme != "https") return {};
  std::string rest = end == std::string::npos ? text : text.substr(end + 3);
  if (rest.ends_with('/')) rest.pop_back();
  const auto endpoint = parse_endpoint(rest, kEtcdPort);
  if (!endpoint) return {};
  address.endpoint = *endpoint;
  return address;
}

std::optional<std::vector<EtcdAddress>> parse_addresses(const std::string& text) {
  std::vector<EtcdAddress> all;
  for (const std::string& word : split(text, ',')) {
    auto address = parse_address(word);
    if (!address || std::ranges::count(all, address->endpoint, &EtcdAddress::endpoint) > 0 ||
        (!all.empty() && all.front().scheme != address->scheme))
      return {};
    all.push_back(*std::move(address));
  }
  return all;
}

/// The file that the key of --rdzv-conf names, else the variable; "" if none does. throws IoError
std::string file_of(const settings::Values& values, const std::string& by_key, const char* key,
                    const EnvLookup& environment, const char* variable) {
  const std::string path = by_key.empty() ? environment(variable).value_or("") : by_key;
  const std::string source = by_key.empty() ? variable : values.source("rdzv-conf") + ": " + key;
  if (!path.empty()) for_flag(source, [&] { return open_regular_file(path); });
  return path;
}

}  // namespace

std::vector<Setting> etcd_conf_keys(EtcdConf& conf) {
  return {settings::choice("protocol", conf.protocol, std::vector<std::string>{"http", "https"}),
          settings::text("cacert", conf.files.authorities),
          settings::text("ca_cert", conf.files.authorities),
          settings::text("cert", conf.files.certificate),
          settings::text("ssl_cert", conf.files.certificate),
          settings::text("key", conf.files.key),
          settings::text("ssl_cert_key", conf.files.key),
          settings::text("etcd_prefix", conf.prefix)};
}

void read_etcd(const settings::Values& values, const EnvLookup& environment, const EtcdConf& conf,
               Options& options) {
  EtcdSettings& etcd = options.nodes.etcd.emplace();
  if (!values.given("rdzv-endpoint"))
    throw UsageError(values.source("rdzv-backend") +
                     ": expected etcd's address as well (--rdzv-endpoint=HOST[:PORT]), got none");
  std::vector<EtcdAddress> addresses;
  values.read("rdzv-endpoint",
              "etcd's [http[s]://]HOST[:PORT], or several different ones of one cluster, separated by commas",
              parse_addresses, addresses);
  for (const EtcdAddress& address : addresses) etcd.endpoints.push_back(address.endpoint);
  options.nodes.endpoint = {"NODE-OF-RANK-0", 0};  // for --dry-run: the nodes find out which one it is
  if (values.given("master-addr"))
    values.reject("master-addr", "no address with --rdzv-backend=etcd, which elects the coordinator's node");
  if (!conf.prefix.empty()) etcd.prefix = conf.prefix;
  while (etcd.prefix.ends_with('/')) etcd.prefix.pop_back();

  const std::string& scheme = addresses.front().scheme;
  if (!scheme.empty() && !conf.protocol.empty() && scheme != conf.protocol)
    values.reject("rdzv-conf", "protocol=" + scheme + " as in --rdzv-endpoint, or none");
  const std::string protocol = scheme.empty() ? conf.protocol : scheme;
  if (protocol != "http") {
    const TlsFiles files{file_of(values, conf.files.authorities, "cacert", environment, "ETCDCTL_CACERT"),
                         file_of(values, conf.files.certificate, "cert", environment, "ETCDCTL_CERT"),
                         file_of(values, conf.files.key, "key", environment, "ETCDCTL_KEY")};
    if (protocol == "https" || !files.authorities.empty() || !files.certificate.empty()) etcd.tls = files;
  }

  const std::string user = environment("ETCDCTL_USER").value_or("");
  const auto colon = user.find(':');  // as etcdctl reads it
  etcd.user = user.substr(0, colon);
  etcd.password =
      colon == std::string::npos ? environment("ETCDCTL_PASSWORD").value_or("") : user.substr(colon + 1);
  etcd.timeout = std::clamp(options.nodes.node_timeout / 4, std::chrono::milliseconds(500), etcd.timeout);
}

}  // namespace ddprun::launcher
