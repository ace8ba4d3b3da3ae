#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "launcher/job/job.h"
#include "launcher/status/progress.h"

namespace ddprun::launcher {

struct Attempt;
struct JobRecord;
class AttemptOutput;
class StatusBoard;
class WorkerGroup;

/// A job's name for ddpctl: the beginning of its id.
std::string job_name(const std::string& job_id);

/// Answers queries about the running job.
class JobMonitor {
 public:
  JobMonitor(Job& job, const JobRecord& record) : job_(job), record_(record) {}

  /// The workers that are running now.
  struct Running {
    const Attempt& attempt;
    const WorkerGroup& group;
    StatusBoard& statuses;
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

  // What can be asked of it. All that waits is a coroutine: an answer never delays the job.

  nlohmann::ordered_json view() const;  ///< docs/ddpctl.md
  /// A rank's output after its first `seen` bytes, as far as it is kept.
  nlohmann::ordered_json output(int rank, std::uint64_t seen) const;
  /// The stacks of one rank, or of all.
  boost::asio::awaitable<nlohmann::ordered_json> stacks(std::optional<int> rank) const;
  nlohmann::ordered_json stop();
  /// What becomes of a node of the job that is to leave it, as its coordinator says.
  boost::asio::awaitable<nlohmann::ordered_json> drain(std::string node, std::chrono::milliseconds patience);
  /// Of a job with spares: whether the signal, which came to this node alone, drains it. If the coordinator
  /// does not agree, it is an event as any other.
  bool drains_instead(int signal);
  /// This node takes part in a round. If it was to be drained after a signal, it asks again.
  void drain_again();

  // For a job on several nodes.

  /// This node's name, and the host where it looks for the coordinator.
  void set_nodes(std::string node, std::string coordinator);
  /// The coordinator is in this ddprun: the other nodes tell it about their ranks.
  void gather() { board_.emplace(); }
  void take(const std::string& node, const Summary& summary);
  /// Who asks the coordinator. It returns false if that cannot be asked now.
  /// Whether the coordinator is asked, or will be there to be asked in a moment.
  enum class Asked { kYes, kSoon, kNo };
  void on_drain(std::function<Asked(const Drain&)> ask) { ask_to_drain_ = std::move(ask); }
  void take(const DrainAnswer& answer) {
    if (const auto asker = answered_.find(answer.request); asker != answered_.end()) asker->second(answer);
  }
  void note_drain(const std::string& node, const std::string& text);  ///< of another node
  void set_leaving() { leaving_ = true; }                             ///< this node is drained
  bool ends_alone() const { return ends_alone_; }
  void set_ending_alone() { ends_alone_ = leaving_ = true; }  ///< its user ends it, and the others go on
  /// `ddpctl stop` ends this node's ddprun, and with it the whole job.
  bool asked_to_stop() const { return asked_to_stop_; }
  /// For a message: "received SIGTERM", or that it was ddpctl stop.
  std::string who_ends(const SignalReceived& received) const;
  /// For the coordinator, if it is elsewhere: summaries of at most the first few hundred workers.
  std::vector<Summary> summaries();
  /// nullopt: only the coordinator's ddprun knows.
  std::optional<std::vector<OwnTime>> other_times() const;

 private:
  boost::asio::awaitable<void> drain_this_node(bool again);
  void add_running(nlohmann::ordered_json& view) const;
  nlohmann::ordered_json rank_view(std::size_t index) const;

  Job& job_;
  const JobRecord& record_;
  std::optional<Running> running_;
  std::string node_, coordinator_;  ///< empty: only one node
  std::optional<NodesBoard> board_;
  bool asked_to_stop_ = false, leaving_ = false, ends_alone_ = false;
  bool asked_to_leave_ = false, may_leave_ = false;  ///< by a signal; and the coordinator has agreed
  std::function<Asked(const Drain&)> ask_to_drain_;
  int drain_requests_ = 0;
  std::map<int, std::function<void(const DrainAnswer&)>> answered_;  ///< by request, while somebody waits
  std::map<std::string, std::string> drained_;  ///< nodes, and what became of their ranks
  std::map<int, GpuUse> gpus_;
  std::future<std::map<int, GpuUse>> reading_gpus_;
  NodesBoard::Clock::time_point read_gpus_next_;
};

}  // namespace ddprun::launcher
