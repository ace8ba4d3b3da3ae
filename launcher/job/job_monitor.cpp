#include "launcher/job/job_monitor.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <nlohmann/json.hpp>
#include <thread>

#include <ddprun/common/worker_env.h>
#include "launcher/events/clock.h"
#include "launcher/host/gpu_list.h"
#include "launcher/job/attempt.h"
#include "launcher/outcome/result_json.h"
#include "launcher/outcome/stack_dump.h"
#include "launcher/output/attempt_output.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/status/status_board.h"
#include "launcher/workers/job_processes.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

using json = nlohmann::ordered_json;

constexpr std::size_t kJobNameSize = 8;
constexpr std::size_t kMostStackBytes = 1 << 18;  // per rank
constexpr std::chrono::milliseconds kStackLook{50};
/// For the coordinator's answer, before a signal is passed on to the workers.
constexpr std::chrono::seconds kLeavePatience{1};
constexpr std::chrono::milliseconds kAskAgain{500}, kAskFor{10'000};  // then its workers must save
constexpr std::chrono::seconds kReadGpusEvery{10};                    // it loads the driver's library
constexpr std::size_t kMostSummaries = 256;  // a connection queues no more than 1024 messages

double seconds_since(JobEvents::Clock::time_point time) {
  return std::chrono::duration<double>(JobEvents::Clock::now() - time).count();
}

json pace_json(const Pace& pace) {
  json object = {{"steps", pace.steps}, {"step_seconds", pace.step_seconds}};
  if (pace.samples_per_second > 0) object["samples_per_second"] = pace.samples_per_second;
  if (pace.data) object["data_seconds"] = *pace.data;
  if (pace.compute) object["compute_seconds"] = *pace.compute;
  if (pace.communication) object["communication_seconds"] = *pace.communication;
  return object;
}

void add_exit(json& object, const Worker& worker) {
  if (!worker.status) {
    object["state"] = "running";
  } else if (worker.status->kind == ExitStatus::Kind::kKilled) {
    object["state"] = "killed";
    object["signal_name"] = signal_name(worker.status->signal);
  } else {
    object["state"] = "exited";
    object["exit_code"] = worker.status->code;
  }
}

/// How far the slowest rank is, and its remaining time.
void add_progress(json& view, const json& ranks) {
  for (const json& rank : ranks) {
    const json& status = rank["status"];
    if (!status.contains("step") || (view.contains("step") && view["step"] <= status["step"])) continue;
    view["step"] = status["step"];
    for (const char* name : {"steps", "epoch", "epochs", "phase", "loss"})
      if (status.contains(name)) view[name] = status[name];
    if (rank.contains("pace") && status.contains("steps") && status["steps"] >= status["step"])
      view["remaining_seconds"] = (status["steps"].get<double>() - status["step"].get<double>()) *
                                  rank["pace"]["step_seconds"].get<double>();
  }
}

}  // namespace

std::string job_name(const std::string& job_id) { return job_id.substr(0, kJobNameSize); }

json JobMonitor::view() const {
  json view = {{"format", 1},
               {"ddprun", DDPRUN_VERSION},
               {"job", job_name(job_.job_id)},
               {"run_id", job_.run_id},
               {"pid", ::getpid()},
               {"host", host_name()},
               {"program", redacted(job_.options.program)},
               {"start", utc_iso(record_.start)},
               {"seconds", seconds_since(job_.clock.start())},
               {"state", running_ ? "running" : "waiting"},
               {"restarts", record_.restarts},
               {"max_restarts", job_.options.restart.max_restarts},
               {"workers", job_.workers},
               {"ranks", json::array()}};
  if (!node_.empty()) {
    view["node_name"] = node_;
    view["coordinator"] = coordinator_;
  }
  if (leaving_) view["state"] = "leaving";
  for (const auto& [node, text] : drained_) view["drained"].push_back({{"node", node}, {"text", text}});
  if (board_) view["other_ranks"] = board_->ranks(NodesBoard::Clock::now());
  if (running_) add_running(view);
  for (const char* ranks : {"ranks", "other_ranks"})
    if (view.contains(ranks)) add_progress(view, json(view[ranks]));
  return view;
}

void JobMonitor::add_running(json& view) const {
  const Round& round = running_->attempt.round;
  view["attempt"] = round.number;
  view["world_size"] = round.world_size;
  view["node"] = round.group_rank;
  view["nodes"] = round.group_world_size;
  for (std::size_t i = 0; i < running_->group.workers().size(); ++i) view["ranks"].push_back(rank_view(i));
  if (!node_.empty() && !board_) return;
  view["stragglers"] = json::array();
  for (const Straggler& straggler : running_->statuses.slow_now())
    view["stragglers"].push_back(to_json(straggler));
}

void JobMonitor::set_nodes(std::string node, std::string coordinator) {
  node_ = std::move(node);
  coordinator_ = std::move(coordinator);
}

void JobMonitor::take(const std::string& node, const Summary& summary) {
  board_->take(node, summary.round, summary.rank, NodesBoard::Clock::now());
  if (running_) running_->statuses.look();
}

std::vector<Summary> JobMonitor::summaries() {
  if (board_ || !running_) return {};
  if (reading_gpus_.valid() && reading_gpus_.wait_for(std::chrono::seconds(0)) == std::future_status::ready)
    gpus_ = reading_gpus_.get();
  const auto now = NodesBoard::Clock::now();
  if (!reading_gpus_.valid() && !job_.topology.host_gpus.empty() && now >= read_gpus_next_) {
    read_gpus_next_ = now + kReadGpusEvery;
    std::packaged_task<std::map<int, GpuUse>()> read(gpu_use);
    reading_gpus_ = read.get_future();
    std::thread(std::move(read)).detach();  // the driver may be slow, or never answer
  }
  std::vector<Summary> summaries;
  for (std::size_t i = 0; i < std::min(running_->group.workers().size(), kMostSummaries); ++i) {
    json view = rank_view(i);
    view.erase("logs");
    if (const auto use = gpus_.find(view["pid"].get<int>()); use != gpus_.end())
      view["gpu"] = {{"percent", use->second.percent}, {"bytes", use->second.bytes}};
    summaries.push_back(
        {running_->attempt.round.number, view.dump(-1, ' ', false, json::error_handler_t::replace)});
  }
  return summaries;
}

std::optional<std::vector<OwnTime>> JobMonitor::other_times() const {
  if (node_.empty()) return std::vector<OwnTime>();
  if (!board_) return std::nullopt;
  return board_->own_times(NodesBoard::Clock::now());
}

json JobMonitor::rank_view(std::size_t index) const {
  const WorkerSpec& spec = running_->attempt.specs[index];
  const Worker& worker = running_->group.workers()[index];
  const Progress& progress = running_->statuses.progress(index);
  json object = {{"rank", spec.rank}, {"local_rank", spec.local_rank}, {"pid", worker.process.pid}};
  add_exit(object, worker);
  object["seconds"] = seconds_since(worker.started);
  if (const auto use = worker.status ? std::nullopt : process_use(worker.process.pid)) {
    object["cpu_seconds"] = use->cpu_seconds;
    object["resident_bytes"] = use->resident_bytes;
    if (use->stopped) object["state"] = "stopped";
  }
  object["status"] = json::parse(to_json_line(progress.latest()));
  if (const auto said = progress.said_at()) object["said_seconds_ago"] = seconds_since(*said);
  if (const auto pace = progress.pace()) object["pace"] = pace_json(*pace);
  object["garbage_lines"] = progress.garbage_lines();
  object["logs"] = json::array();
  for (const auto& log : running_->attempt.logs[index])
    object["logs"].push_back(std::filesystem::absolute(log).string());
  return object;
}

json JobMonitor::output(int rank, std::uint64_t seen) const {
  const int first = running_ ? running_->attempt.round.first_rank : 0;
  const std::size_t index = static_cast<std::size_t>(rank) - static_cast<std::size_t>(first);
  if (!running_ || rank < first || index >= running_->group.workers().size())
    return {{"error", "rank " + std::to_string(rank) + " does not run here"}};
  const RecentOutput& recent = running_->outputs.recent(index);
  return {{"pid", running_->group.workers()[index].process.pid},
          {"seen", recent.total()},
          {"text", std::string(recent.after(seen))}};
}

json JobMonitor::stop() {
  if (ends_alone_) return {{"error", "this node is leaving the job; stop the job on another of its nodes"}};
  if (job_.options.ending_signals.empty())
    return {{"error", "no signal ends this job (--signals-to-handle=none)"}};
  asked_to_stop_ = true;
  job_.events.push(SignalReceived{job_.options.ending_signals.front()});
  return {{"stopping", true}};
}

std::string JobMonitor::who_ends(const SignalReceived& received) const {
  return asked_to_stop_ ? "ddpctl stop" : "received " + signal_name(received.signal);
}

asio::awaitable<json> JobMonitor::drain(std::string node, std::chrono::milliseconds patience) {
  if (node_.empty()) co_return json{{"refused", "the job has no other node that could go on"}};
  const Drain wish{++drain_requests_, std::move(node)};
  const Asked asked = ask_to_drain_ ? ask_to_drain_(wish) : Asked::kNo;
  if (asked == Asked::kSoon)
    co_return json{{"refused", "the job's coordinator is lost; try again when another node has its place"},
                   {"searches", true}};
  if (asked == Asked::kNo)
    co_return json{{"refused", "this node has no connection to the job's coordinator, or the job is ending"}};
  Timer timer(co_await asio::this_coro::executor, patience);
  std::optional<DrainAnswer> answer;
  // At once, as the asked node may be the one that leaves.
  answered_[wish.request] = [&](const DrainAnswer& given) {
    answer = given;
    timer.cancel();
  };
  boost::system::error_code ignored;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  answered_.erase(wish.request);
  if (!answer)
    co_return json{
        {"error", "the job's coordinator does not answer; ddpctl top shows whether the node leaves"}};
  co_return json{{answer->accepted ? "drains" : "refused", answer->text}, {"passes", answer->passes}};
}

bool JobMonitor::drains_instead(int signal) {
  if (signal != SIGTERM || !job_.signals.ends_job(signal) || job_.events.end_signals() > 0 || leaving_ ||
      std::exchange(asked_to_leave_, true))
    return false;
  asio::co_spawn(job_.io, drain_this_node(/*again=*/false), asio::detached);
  return true;
}

void JobMonitor::drain_again() {
  if (std::exchange(may_leave_, false) && !leaving_)
    asio::co_spawn(job_.io, drain_this_node(/*again=*/true), asio::detached);
}

asio::awaitable<void> JobMonitor::drain_this_node(bool again) {
  Timer timer(co_await asio::this_coro::executor);
  const auto until = JobEvents::Clock::now() + kAskFor;
  const auto is_ending = [this] { return leaving_ || job_.events.end_signals() > 0; };
  for (bool waits = again;; waits = true) {
    const json reply = co_await drain(job_.job_id, kLeavePatience);
    if (is_ending()) co_return;
    const std::string text = printable(reply.begin()->get<std::string>());
    may_leave_ = reply.contains("drains");
    if (may_leave_) {
      log_warning("received SIGTERM: " + text);
      co_return;
    }
    // Without an answer, the coordinator may be lost: then the next one is asked.
    if (!reply.value("passes", waits || reply.contains("searches")) || JobEvents::Clock::now() >= until) {
      if (again) {
        asked_to_leave_ = false;
        may_leave_ = !reply.contains("passes");
        log_warning("received SIGTERM, but this node stays in the job: " + text);
      } else {
        if (reply.contains("passes")) log_info("the job cannot go on without this node: " + text);
        job_.events.push(SignalReceived{SIGTERM});
      }
      co_return;
    }
    if (!waits)
      log_warning("received SIGTERM: " + text + " (this node asks again for " + in_seconds(kAskFor) +
                  "; a second SIGTERM ends the job)");
    timer.expires_after(kAskAgain);
    boost::system::error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    if (is_ending()) co_return;
  }
}

void JobMonitor::note_drain(const std::string& node, const std::string& text) {
  drained_[node] = text;
  EventRecord event{EventRecord::Kind::kDrained, JobEvents::Clock::now(),
                    running_ ? running_->attempt.round.number : 0};
  event.node = node;
  event.cause = text;
  job_.log.add(event);
}

asio::awaitable<json> JobMonitor::stacks(std::optional<int> rank) const {
  std::vector<StackTarget> targets;
  for (std::size_t i = 0; running_ && i < running_->group.workers().size(); ++i)
    if (const Worker& worker = running_->group.workers()[i];
        !worker.status && rank.value_or(running_->attempt.specs[i].rank) == running_->attempt.specs[i].rank)
      targets.push_back({running_->attempt.specs[i].rank, worker.process.pid});
  if (targets.empty()) co_return json{{"error", "no such rank runs here"}};
  StackTools tools = co_await find_stack_tools();
  StackDump dump(targets, std::move(tools));
  Timer timer(co_await asio::this_coro::executor);
  while (!dump.advance()) {
    timer.expires_after(dump.looking() ? std::chrono::milliseconds(0) : kStackLook);
    boost::system::error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  json reply = {{"ranks", json::array()}};
  for (const StackResult& result : dump.finish())
    reply["ranks"].push_back({{"rank", result.rank},
                              {"tools", result.tools},
                              {"problem", result.problem},
                              {"text", result.text.substr(0, kMostStackBytes)}});
  co_return reply;
}

}  // namespace ddprun::launcher
