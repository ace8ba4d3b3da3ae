#pragma once

#include <boost/asio/awaitable.hpp>
#include <optional>

#include "launcher/failure/result_json.h"
#include "launcher/job/job.h"
#include "launcher/job/supervisor.h"
#include "launcher/rendezvous/node_link.h"
#include "launcher/rendezvous/server.h"

namespace ddprun::launcher {

/// What connects this node with the others. Has to live as long as the io_context runs.
struct NodeConnections {
  std::optional<CoordinatorServer> server;  ///< if the coordinator is here
  std::optional<NodeLink> link;
};

/// This node's part of a job over several: workers are started, ended and started again as the coordinator
/// says, and what happens to them is told to it.
///
/// throws  LaunchError if the coordinator cannot be reached, is lost, or refuses this node; else as
/// run_attempt
boost::asio::awaitable<RunResult> supervise_node(Job& job, NodeConnections& connections, JobRecord& record);

}  // namespace ddprun::launcher
