#pragma once

#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include "launcher/cli/options.h"
#include "launcher/events/events_json.h"
#include "launcher/events/job_clock.h"
#include "launcher/events/job_events.h"
#include "launcher/events/signals.h"
#include "launcher/host/topology.h"
#include "launcher/output/job_output.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/plan/placement.h"
#include "launcher/plan/program.h"
#include "launcher/workers/guard.h"

namespace ddprun::launcher {

class JobMonitor;

/// What all attempts of a job share.
struct Job {
  const Options& options;
  const std::vector<std::string>& environment;  ///< ddprun's own, "NAME=value"
  Program program;
  Topology topology;
  int workers = 0;
  Placement placement;
  std::optional<JobEvents::Clock::time_point> deadline;
  std::string job_id, run_id;
  std::filesystem::path timer_file;  ///< of PyTorch's file timers; empty: not wanted
  JobClock clock;
  std::vector<UniqueFd> states;  ///< with --recover=rank: memory that outlives each worker, by local rank
  boost::asio::io_context& io;
  const SignalFd& signals;
  Guard& guard;
  JobEvents& events;
  EventsJson& log;
  JobOutput& outputs;
  JobMonitor* monitor = nullptr;  ///< notified of each attempt
};

}  // namespace ddprun::launcher
