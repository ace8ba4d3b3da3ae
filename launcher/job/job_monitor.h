#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "launcher/job/job.h"
#include "launcher/status/job_questions.h"

namespace ddprun::launcher {

struct Attempt;
struct JobRecord;
class AttemptOutput;
class StatusBoard;
class WorkerGroup;

/// A job's name for ddpctl: the beginning of its id.
std::string job_name(const std::string& job_id);

/// Answers what can be asked of the running job.
class JobMonitor {
 public:
  JobMonitor(Job& job, const JobRecord& record) : job_(job), record_(record) {}

  /// The workers that run now.
  struct Running {
    const Attempt& attempt;
    const WorkerGroup& group;
    const StatusBoard& statuses;
    const AttemptOutput& outputs;
  };
  /// Shows these workers while it lives.
  class Watching {
   public:
    Watching(JobMonitor& monitor, const Running& running) : monitor_(monitor) {
      monitor.running_.emplace(running);
    }
    ~Watching() { monitor_.running_.reset(); }
    Watching(const Watching&) = delete;
    Watching& operator=(const Watching&) = delete;

   private:
    JobMonitor& monitor_;
  };

  /// They refer to this.
  JobQuestions questions();

 private:
  nlohmann::ordered_json view() const;
  nlohmann::ordered_json rank_view(std::size_t index) const;
  nlohmann::ordered_json output(int rank, std::uint64_t seen) const;
  nlohmann::ordered_json stop();
  boost::asio::awaitable<nlohmann::ordered_json> stacks(std::optional<int> rank) const;

  Job& job_;
  const JobRecord& record_;
  std::optional<Running> running_;
};

}  // namespace ddprun::launcher
