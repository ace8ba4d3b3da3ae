// --preflight: what must succeed on a node before it joins the job (docs/preflight.md). A command runs like a
// worker, with its output captured; the checks that ddprun brings along run in a process of their own, too,
// since a disk or a driver may never answer.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/job/job.h"
#include "launcher/job/supervisor.h"
#include "launcher/outcome/result_json.h"

namespace ddprun::launcher {

/// ddprun's first word if it only makes checks: then come their names, separated by commas, how many GPUs the
/// workers need, and the folders to write to.
inline constexpr char kOnlyChecks[] = "--only-preflight-checks";

/// Makes the checks, and prints what is wrong, a line for each problem.
///
/// words    beginning with kOnlyChecks
/// returns  an exit code: 0 if nothing is wrong
int run_checks(const std::vector<std::string>& words);

/// What in the kernel's log says that a GPU is broken, since its driver was loaded: some of NVIDIA's Xid
/// errors, one line for each GPU and error.
///
/// others  the PCI addresses of GPUs that the job does not use: "0000:3b:00"
std::vector<std::string> xid_problems(std::string_view log, const std::vector<std::string>& others);

/// Runs the preflight, and then the node's part of the job. If the preflight fails, job.unfit says why: then
/// this node of several only tells the coordinator.
boost::asio::awaitable<RunResult> after_preflight(Job& job, JobRecord& record,
                                                  boost::asio::awaitable<RunResult> work);

}  // namespace ddprun::launcher
