// --hosts and --hostfile: the hosts of a job whose ddpruns this one starts itself, over ssh.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/worker_env.h>

namespace ddprun::settings {
class Values;
}

namespace ddprun::launcher {

struct Options;

struct Host {
  std::string target;        ///< as ssh takes it: "node1", "user@node1"
  std::optional<int> slots;  ///< workers there; none: --nproc-per-node
  /// Without the user.
  std::string name() const { return target.substr(target.find('@') + 1); }
  bool operator==(const Host&) const = default;
};

/// What the ddprun that was typed sends to the one that it starts on another host, over ssh's standard input:
/// nothing of it stands in a command line or in ssh's environment.
struct StartOrder {
  std::vector<Host> hosts;
  std::size_t own = 0;                   ///< the index of the receiver's host
  int port = 0;                          ///< where the nodes meet, on the first host
  std::string token;                     ///< the job's
  bool prefix = false;                   ///< begin lines with a prefix, as they end on a terminal
  std::string folder;                    ///< to work in
  std::vector<std::string> environment;  ///< "NAME=value", to be set there
  std::vector<std::string> words;        ///< the command line
  int channel = -1;                      ///< after receive_order(): signals come here, and the end
  bool operator==(const StartOrder&) const = default;
};

struct HostsOptions {
  std::vector<Host> all;           ///< in their order; the first one has the coordinator. Empty: no --hosts
  std::optional<std::size_t> own;  ///< this ddprun's; none: it only starts the others
  int channel = -1;                ///< to the ddprun that started this one; -1: none, it was typed
  int port = 0;
  std::string token;
  std::vector<std::string> words;       ///< the command line, for the others
  std::vector<std::string> ssh{"ssh"};  ///< the command that takes a host and a command
  std::string ddprun;                   ///< --ssh-ddprun; empty: where this ddprun is, else on the PATH
  std::vector<std::string> env;         ///< --ssh-env: NAME, PREFIX*

  /// Whether this ddprun starts others.
  bool starts() const { return channel < 0 && all.size() > (own ? 1U : 0U); }
  /// Whether it is one of several and the first tells what concerns all.
  bool is_silent() const { return channel >= 0 && own != 0; }
};

/// Reads --hosts: "node1,user@node2:4,gpu[01-03]". nullopt: not a list of different hosts.
std::optional<std::vector<Host>> parse_hosts(const std::string& text);

/// Reads a hostfile, with a host in each line: "node1", "node1 slots=4" (Open MPI, DeepSpeed) or "node1:4"
/// (Hydra). "#" begins a comment.
///
/// throws  UsageError that begins with "SOURCE: line 3 of 'FILE': "
std::vector<Host> parse_hostfile(const std::string& text, const std::string& source, const std::string& path);

/// Reads --exclude: "node3,gpu[01-03],10.0.0.7".
std::optional<std::vector<std::string>> parse_excluded(const std::string& text);

/// Whether --exclude names this host; one of both names may lack its domain.
bool is_excluded(const std::string& host, const std::vector<std::string>& excluded);

/// Reads --ssh-env: names, or beginnings of names with a '*'.
std::optional<std::vector<std::string>> parse_variable_names(const std::string& text);

/// Reads --ssh: words between white space.
std::optional<std::vector<std::string>> parse_ssh(const std::string& text);

/// Sets options.hosts, and what else the hosts decide but the nodes: slots, prefix.
///
/// order   of the ddprun that has started this one; null: none
/// throws  UsageError, and IoError for --hostfile
void read_hosts(const settings::Values& values, const EnvLookup& environment, const StartOrder* order,
                Options& options);

/// Sets options.nodes for this host: everything but the numbers of nodes. throws UsageError
void apply_hosts(const settings::Values& values, Options& options);

}  // namespace ddprun::launcher
