#pragma once

#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/event_log.h"
#include "launcher/guard.h"
#include "launcher/job_clock.h"
#include "launcher/job_events.h"
#include "launcher/launch_plan.h"
#include "launcher/options.h"
#include "launcher/outputs.h"
#include "launcher/placement.h"
#include "launcher/program.h"
#include "launcher/signals.h"
#include "launcher/topology.h"

namespace ddprun {

/// What all attempts of a job have in common.
struct Job {
  const Options& options;
  const std::vector<std::string>& environment;  ///< ddprun's own, "NAME=value"
  Program program;
  Topology topology;
  int workers = 0;
  Placement placement;
  std::optional<JobEvents::Clock::time_point> deadline;
  std::string job_id, run_id;
  JobClock clock;
  boost::asio::io_context& io;
  const SignalFd& signals;
  Guard& guard;
  JobEvents& events;
  EventLog& log;
  Outputs& outputs;
};

}  // namespace ddprun
