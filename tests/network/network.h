#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include "tests/network/slow_hub.h"
#include "tests/support/child.h"

namespace ddprun::test {

/// Hosts 0, 1, ... of a private network on this machine: network namespaces, joined by a bridge. There
/// is no way out, no name server, and /etc/hosts knows localhost alone. Host i is called "h<i>" and has the
/// addresses 10.99.0.<i+1> and fd00:99::<i+1>.
///
/// The namespaces have no names: only this process and those that it starts in them hold them, so nothing is
/// left of them, however a test ends. Needs root and `ip`; the constructor skips the test case where the
/// namespaces cannot be made.
class Network {
 public:
  struct Options {
    bool ipv4 = true;                ///< otherwise IPv6 alone
    std::optional<Impairment> slow;  ///< a hub of ours that delays and loses, in place of the bridge
  };
  explicit Network(int hosts);
  Network(int hosts, const Options& options);

  static std::string name(int host) { return "h" + std::to_string(host); }
  static std::string ipv4(int host) { return "10.99.0." + std::to_string(host + 1); }
  static std::string ipv6(int host) { return "fd00:99::" + std::to_string(host + 1); }

  /// The program, to be started on the host.
  Command on(int host, Command command) const;

  /// Runs the function on the host; what sockets it opens stay there. Rethrows what it throws.
  void run_on(int host, const std::function<void()>& body) const;

  /// What /etc/hosts has after localhost, on all hosts, for what is started from now on.
  void set_names(const std::string& lines) const;

  /// One more IPv4 address of the host.
  void add_address(int host, const std::string& address) const;

  /// Pulls the host's cable out, and puts it in again.
  void cut(int host) const { ip(bridge_, "link set p" + std::to_string(host) + " down"); }
  void mend(int host) const { ip(bridge_, "link set p" + std::to_string(host) + " up"); }

 private:
  using Namespace = UniqueFd;

  static Namespace make_namespace();
  static std::string path_of(const Namespace& space);
  static void ip(const Namespace& space, const std::string& commands);
  void enter(int host) const;

  TempDir folder_;  ///< what the hosts have in place of files in /etc
  Namespace bridge_;
  std::vector<Namespace> hosts_;
  std::optional<SlowHub> hub_;
};

}  // namespace ddprun::test
