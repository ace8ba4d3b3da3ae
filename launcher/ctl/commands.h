#pragma once

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include "launcher/ctl/job_screen.h"

namespace ddprun::launcher {

/// A running job of this user on this machine, queried through its socket (ControlSocket).
class JobConnection {
 public:
  /// throws IoError if nobody is listening there
  explicit JobConnection(const std::filesystem::path& socket);

  /// The answer to a request such as {"ask": "status"}.
  /// throws  IoError if the job is gone, silent for too long (ETIMEDOUT), or answers {"error": ...}
  nlohmann::ordered_json ask(const nlohmann::ordered_json& request,
                             std::chrono::seconds patience = std::chrono::seconds(10));

  const std::filesystem::path& socket() const { return path_; }

  /// The answer to {"ask": "status"} when the job was found.
  const nlohmann::ordered_json& view() const { return view_; }

 private:
  friend std::vector<JobConnection> find_jobs();
  void connect();
  void reconnect();
  std::filesystem::path path_;
  UniqueFd fd_;  // none after a question without an answer
  std::string received_;
  nlohmann::ordered_json view_;
};

/// All jobs that answer, oldest first; warns about others. Removes sockets left by a dead ddprun.
std::vector<JobConnection> find_jobs();

/// Finds a job by its name, its run id, ddprun's pid, or a prefix of one of the first two. Empty: the only
/// job. throws UsageError listing the jobs unless exactly one matches
JobConnection find_job(const std::string& wanted);

/// The command line of `ddpctl`.
struct CtlOptions {
  std::string command, job;
  std::string node;  ///< drain
  std::optional<int> rank;
  bool follow = false, once = false;
  double interval = 2;
  bool help = false, version = false;
};

/// throws UsageError
CtlOptions parse_ctl_options(const std::vector<std::string>& words);

std::string ctl_help();

/// The stacks of one rank, or of all, as text.
std::string stacks_text(JobConnection& job, std::optional<int> rank);

/// Runs any command except top. returns the exit code
int run_command(const CtlOptions& options);

/// Shows a job until the user leaves or the job ends: one screen, refreshed every `interval` seconds. returns
/// the exit code
int show_top(const std::string& job, double interval);

}  // namespace ddprun::launcher
