#pragma once

#include <boost/asio/awaitable.hpp>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/error_file.h>
#include "launcher/cli/options.h"
#include "launcher/job/job.h"
#include "launcher/outcome/result_json.h"
#include "launcher/rendezvous/election.h"
#include "launcher/rendezvous/node_link.h"
#include "launcher/rendezvous/server.h"

namespace ddprun::launcher {

class RemoteHosts;

struct RunResult {
  int exit_code = 0;
  std::optional<int> ended_by;  ///< the user's signal that ended the job: ddprun must die by it too
  int end_signals = 0;          ///< how many asked for the end, also after the workers had ended
  bool drained = false;         ///< this node has left the job, which goes on

  static RunResult by_signal(int signal) { return {exit_code_of_signal(signal), signal}; }
};

/// Runs one job, leaving no processes or files behind. Logs why it failed.
///
/// environment   ddprun's own, "NAME=value"
RunResult run_job(const Options& options, const std::vector<std::string>& environment);

/// The connections to the other nodes. Must outlive the run of the io_context.
struct NodeConnections {
  std::list<CoordinatorServer> servers;  ///< only the last one has not resigned
  std::optional<Election> election;      ///< --rdzv-backend=etcd
  std::list<NodeLink> links;             ///< the last one is in use; earlier ones have lost their coordinator

  /// Null: the coordinator is not here.
  CoordinatorServer* server() {
    return servers.empty() || servers.back().resigned() ? nullptr : &servers.back();
  }
  void end_job(const AttemptEnd& end, const std::string& reason) {
    if (server() != nullptr) server()->end(to_exit_code(end), reason, is_stuck(end), signal_of(end));
  }
};

/// Runs this node's part of a multi-node job: starts, stops and restarts workers as the coordinator requests,
/// and reports to it.
///
/// throws  as run_attempt(); LaunchError if the coordinator is unreachable, lost or refuses this node
boost::asio::awaitable<RunResult> supervise_node(Job& job, NodeConnections& connections, JobRecord& record);

/// This node's part of a job with --hosts, beside the ddpruns that it starts on the other hosts.
///
/// If the job goes on without this host, which stays out, it waits for the job's end and has its exit code.
///
/// work    throws as its own does
boost::asio::awaitable<RunResult> supervise_with_hosts(Job& job, RemoteHosts& hosts,
                                                       NodeConnections& connections,
                                                       boost::asio::awaitable<RunResult> work,
                                                       JobRecord& record);

/// A job with --hosts, none of which is this one: waits for those that it starts. The first one's exit code
/// is the job's, or else that of the first one that fails.
boost::asio::awaitable<RunResult> wait_for_hosts(const Options& options, JobEvents& events,
                                                 const SignalFd& signals, Console& console,
                                                 RemoteHosts& hosts, JobRecord& record);

}  // namespace ddprun::launcher
