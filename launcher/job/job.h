#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include "launcher/cli/options.h"
#include "launcher/events/clock.h"
#include "launcher/events/events_json.h"
#include "launcher/events/job_events.h"
#include "launcher/events/signals.h"
#include "launcher/host/topology.h"
#include "launcher/output/job_output.h"
#include "launcher/output/output_stream.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/plan/placement.h"
#include "launcher/workers/guard.h"

namespace ddprun::launcher {

class JobMonitor;
class Preload;

/// What all attempts of a job share.
struct Job : JobPlan {
  int workers = 0;
  std::optional<JobEvents::Clock::time_point> deadline;
  std::string run_id;
  JobClock clock;
  boost::asio::io_context& io;
  const SignalFd& signals;
  Guard& guard;
  JobEvents& events;
  EventsJson& log;
  JobOutput& outputs;
  JobMonitor* monitor = nullptr;  ///< notified of each attempt
  Preload* preload = nullptr;     ///< --preload; null: none
  std::string unfit = {};         ///< why this node stays out of the job (--preflight); empty: it is fit
};

/// The round that --dry-run shows: this node's by its node rank, else the first node's, assuming that all
/// nodes have this many workers. Port 0 means a free one.
Round shown_round(const Options& options, int workers, const std::string& run_id);

/// What --dry-run prints for each worker: the command, the variables that ddprun sets, CPUs and log files,
/// without secrets.
///
/// program    its path
/// inherited  ddprun's own environment, which is not repeated
std::string dry_run_text(const std::string& program, const std::vector<WorkerSpec>& specs,
                         const std::vector<WorkerOutputPlan>& outputs,
                         const std::vector<std::string>& inherited);

/// What --show-ranks prints for a worker: rank, host, process, where the ranks meet, and GPUs if its
/// environment limits them.
std::string rank_line(const WorkerSpec& spec, const std::string& host, pid_t pid);

}  // namespace ddprun::launcher
