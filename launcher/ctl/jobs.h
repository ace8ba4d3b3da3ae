#pragma once

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/files.h>

namespace ddprun::launcher {

/// A running job of this user on this machine, asked through its socket (JobQuestions).
class JobConnection {
 public:
  /// throws IoError if nobody listens there
  explicit JobConnection(const std::filesystem::path& socket);

  /// The answer to a request such as {"ask": "status"}.
  /// throws  IoError if the job is gone, silent for that long (ETIMEDOUT), or answers {"error": ...}
  nlohmann::ordered_json ask(const nlohmann::ordered_json& request,
                             std::chrono::seconds patience = std::chrono::seconds(10));

  /// What {"ask": "status"} said when it was found.
  const nlohmann::ordered_json& view() const { return view_; }

 private:
  friend std::vector<JobConnection> find_jobs();
  std::filesystem::path path_;
  UniqueFd fd_;
  std::string received_;
  nlohmann::ordered_json view_;
};

/// All that answer, oldest first; warns of others. Removes sockets that a dead ddprun left behind.
std::vector<JobConnection> find_jobs();

/// The job that is meant: by its name, its run id, ddprun's pid, or the beginning of one of the first two.
/// Empty: the only job. throws UsageError naming the jobs there are, unless it is one
JobConnection find_job(const std::string& wanted);

}  // namespace ddprun::launcher
