#include "launcher/workers/worker_group.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <ddprun/common/error_file.h>
#include <ddprun/common/errors.h>
#include <ddprun/common/invariant.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include "launcher/events/launch_error.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

// After SIGKILL only a system call that never returns can hold a process (a dead network file system, a
// broken driver). Waiting forever would not help.
constexpr std::chrono::seconds kKillTimeout{10};

// Every worker's silence is judged at least this often. A look late by half of this was prevented: the whole
// job was frozen (SIGSTOP, a paused container), or the machine is too busy to judge.
constexpr std::chrono::milliseconds kHangLook{1000};

// While the workers end, the time by which a wake-up is later than this was one in which the job was stopped.
constexpr std::chrono::milliseconds kStopLook{500};

// How often processes that the signal to end has not reached are looked at, and how long one that has left it
// to its child may go on once the child has ended.
constexpr JobEvents::Clock::duration kAskLook = std::chrono::milliseconds(100);
constexpr std::chrono::seconds kTimeToFollow{1};

// How often, and for how long, a worker that would have died of a signal is asked again.
constexpr std::chrono::milliseconds kOfferLook{10};
constexpr std::chrono::milliseconds kOfferPatience{300};

// How soon a job in the background is stopped if it reads the terminal.
constexpr std::chrono::milliseconds kTerminalLook{200};

StartFailed start_failed(const std::string& program, int rank, const StartFailure& failure) {
  const std::string reason = std::strerror(failure.error);
  const bool about_the_program =
      std::string_view(failure.step) == "execve" && failure.error != EAGAIN && failure.error != ENOMEM;
  if (!about_the_program)
    return {LaunchError::kOwnFailure,
            "cannot start rank " + std::to_string(rank) + ": " + failure.step + ": " + reason};
  std::string hint;
  if (failure.error == ENOENT) hint = " (does the interpreter in its first line exist?)";
  if (failure.error == ENOEXEC) hint = " (does its first line name an interpreter, as in #!/bin/sh?)";
  return {LaunchError::code_of_exec_error(failure.error), "cannot run " + program + ": " + reason + hint};
}

/// A background job must not take input typed at the shell. The kernel would not stop rank 0, which has its
/// own session.
bool may_read_stdin() { return ::isatty(STDIN_FILENO) == 0 || ::tcgetpgrp(STDIN_FILENO) == ::getpgrp(); }

/// Whether the process is there and survives the signal, which it then gets.
bool take_signal(pid_t pid, int signal) { return survives(pid, signal) && ::kill(pid, signal) == 0; }

}  // namespace

WorkerGroup::WorkerGroup(JobEvents& events, const SignalFd& signals, Guard& guard, EventsJson& log,
                         int attempt, bool whole_groups, Preload* preload)
    : events_(events),
      signals_(signals),
      guard_(guard),
      log_(log),
      attempt_(attempt),
      whole_groups_(whole_groups),
      preload_(preload) {}

WorkerGroup::~WorkerGroup() { signal_all(SIGKILL); }

std::optional<StartFailed> WorkerGroup::start(const std::string& program,
                                              const std::vector<WorkerSpec>& specs,
                                              const std::function<WorkerOutputs(std::size_t)>& open_output) {
  check_invariant(workers_.empty(), "a group starts its workers once");
  specs_ = specs;
  workers_.reserve(specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (signals_.end_requested() || events_.end_requested()) return {};
    Worker worker;
    if (auto failed = start_worker(i, program, open_output(i), worker, nullptr)) return failed;
    workers_.push_back(std::move(worker));
    log_worker(EventRecord::Kind::kStarted, i);
  }
  return {};
}

/// output  closed here once the worker has it
std::optional<StartFailed> WorkerGroup::start_worker(std::size_t index, const std::string& program,
                                                     WorkerOutputs output, Worker& worker,
                                                     Standbys* standbys) {
  const WorkerSpec& spec = specs_[index];
  const UniqueFd dev_null = open_dev_null(O_RDONLY);
  StandardFds fds;
  fds.in = spec.reads_stdin && may_read_stdin() ? STDIN_FILENO : dev_null.get();
  if (output.out) fds.out = output.out.get();
  if (output.err) fds.err = output.err.get();
  auto loaded = standbys != nullptr ? standbys->become(spec, fds) : std::nullopt;
  if (!loaded && preload_ != nullptr) loaded = preload_->become(spec, fds);
  if (loaded) {
    worker.process = *std::move(loaded);
  } else {
    auto started = start_process(program, spec, fds, guard_.announce_fd());
    if (const auto* failure = std::get_if<StartFailure>(&started))
      return start_failed(program, spec.rank, *failure);
    worker.process = std::move(std::get<Process>(started));
  }
  worker.started = JobEvents::Clock::now();
  worker.attempt = attempt_;
  if (worker.process.pidfd) events_.watch_exit(index, worker.process.pidfd.get());
  index_of_[worker.process.pid] = index;  // last: until then it would end as a stray
  return {};
}

std::variant<Worker, StartFailed> WorkerGroup::replace(std::size_t index, int round,
                                                       const std::string& program, WorkerOutputs output,
                                                       Standbys& standbys, std::chrono::milliseconds grace) {
  check_invariant(index < workers_.size() && workers_[index].status,
                  "only a worker that has ended is replaced");
  attempt_ = round;
  Worker worker;
  if (auto failed = start_worker(index, program, std::move(output), worker, &standbys)) return *failed;
  Worker& old = workers_[index];
  index_of_.erase(old.process.pid);  // the rest of its group counts as strays
  if (!old.group_gone) {
    signal_group(old.process, SIGTERM);  // it may be writing a checkpoint
    leftovers_.emplace_back(old.process.pid, JobEvents::Clock::now() + grace);
    guard_.forget(old.process.pid);
    old.group_gone = true;
  }
  if (old.process.pidfd) events_.forget_exit(old.process.pidfd.get());
  old.process.pidfd.reset();
  std::swap(old, worker);
  log_worker(EventRecord::Kind::kStarted, index);
  return worker;
}

asio::awaitable<std::optional<AttemptEnd>> WorkerGroup::wait(
    std::optional<JobEvents::Clock::time_point> deadline, const FindHung& find_hung, Peers& peers) {
  auto next_look = JobEvents::Clock::time_point::max();
  for (;;) {
    check_invariant(workers_.size() <= specs_.size(), "each worker was planned");
    if (auto ended = peers.end_reason()) co_return *std::move(ended);
    if (workers_.size() == specs_.size() && peers.begins_round()) co_return std::nullopt;
    const auto now = JobEvents::Clock::now();
    if (deadline && now >= *deadline) co_return TimedOut{};
    auto wake_up = std::min(deadline.value_or(JobEvents::Clock::time_point::max()), kill_leftovers(now));
    wake_up = std::min(wake_up, make_offers());
    stay_off_terminal();
    if (may_be_in_background_) wake_up = std::min(wake_up, now + kTerminalLook);
    if (find_hung) {
      if (next_look != JobEvents::Clock::time_point::max() && now > next_look + kHangLook / 2) resumed_ = now;
      const auto verdict = find_hung(now);
      if (const auto* hung = std::get_if<Hung>(&verdict)) co_return *hung;
      next_look = std::min(std::get<LookAgain>(verdict).at, now + kHangLook);
      wake_up = std::min(wake_up, next_look);
    }
    const JobEvent event = co_await events_.next(wake_up);
    handle(event);
    if (const auto* received = std::get_if<SignalReceived>(&event)) {
      if (signals_.ends_job(received->signal)) co_return *received;
    } else if (const auto* failure = std::get_if<OwnFailure>(&event)) {
      co_return StartFailed{failure->exit_code, failure->message};
    } else if (const auto* exited = std::get_if<WorkerExited>(&event)) {
      const auto& status = workers_[exited->index].status;
      if (!status) continue;  // of a worker that has already been replaced
      if (!status->success()) co_return WorkerFailed{*status, exited->index};
      if (std::ranges::all_of(workers_, &Worker::succeeded)) co_return AllSucceeded{};
    }
  }
}

asio::awaitable<bool> WorkerGroup::wait_for_event(JobEvents::Clock::time_point deadline) {
  const JobEvent event = co_await events_.next(deadline);
  handle(event);
  co_return !std::holds_alternative<DeadlinePassed>(event) && user_signals_.empty();
}

asio::awaitable<std::vector<pid_t>> WorkerGroup::stop(int signal, std::chrono::milliseconds grace) {
  // Workers that have ended by now did so unasked, even if their events are still queued.
  record_exits();
  if (look_for_processes()) co_return std::vector<pid_t>();
  signal_to_end(signal);
  stopped_ = {};
  const auto deadline = JobEvents::Clock::now() + grace;
  constexpr std::chrono::milliseconds kForTheRest{5000};
  if (co_await groups_gone(deadline - std::min(grace / 2, kForTheRest), /*can_hurry=*/true))
    co_return std::vector<pid_t>();
  if (user_signals_.size() < 2) {
    ask_all_the_rest();
    if (co_await groups_gone(deadline, /*can_hurry=*/true)) co_return std::vector<pid_t>();
  }
  const std::string when = user_signals_.size() > 1 ? "before the second signal"
                                                    : "within " + std::to_string(grace.count()) + " ms";
  log_warning(ranks_left() + " did not end " + when + ": sending SIGKILL");
  signal_to_end(SIGKILL);
  co_await groups_gone(JobEvents::Clock::now() + kKillTimeout, /*can_hurry=*/false);
  check_invariant(ending_signals_.back() == SIGKILL, "SIGKILL is the last signal that a worker gets");
  co_return processes_left();
}

/// Waits until no process is left. False if the deadline passes or, with can_hurry, the user signals twice.
/// Time in which the job is stopped does not count.
asio::awaitable<bool> WorkerGroup::groups_gone(JobEvents::Clock::time_point deadline, bool can_hurry) {
  JobEvents::Clock::time_point next_look, next_ask;
  for (bool changed = true;;) {
    const auto begin = JobEvents::Clock::now();
    if (changed && begin >= next_look && !events_.pending()) {
      if (look_for_processes()) co_return true;
      changed = false;
      // A look costs time per remaining process: spend a tenth of the time on it, however many there are.
      const auto end = JobEvents::Clock::now();
      next_look = end + 10 * (end - begin);
    }
    if (const auto now = JobEvents::Clock::now(); can_hurry && now >= next_ask) {
      const bool again = ask_who_goes_on();
      next_ask = again ? JobEvents::Clock::now() + std::max(kAskLook, 10 * (JobEvents::Clock::now() - now))
                       : JobEvents::Clock::time_point::max();
    }
    const auto now = JobEvents::Clock::now();
    auto wake_up = std::min({deadline + stopped_, next_ask, make_offers(), now + kStopLook});
    if (changed) wake_up = std::min(wake_up, next_look);
    const JobEvent event = co_await events_.next(wake_up);
    if (const auto late = JobEvents::Clock::now() - std::max(wake_up, now); late > kStopLook)
      stopped_ += late;
    if (std::holds_alternative<DeadlinePassed>(event)) {
      if (JobEvents::Clock::now() >= deadline + stopped_) co_return false;
      continue;
    }
    handle(event);
    changed = true;
    const auto* received = std::get_if<SignalReceived>(&event);
    if (received == nullptr || !signals_.ends_job(received->signal) || !can_hurry) continue;
    if (user_signals_.size() > 1) co_return false;
    // The other nodes may have told of it first, and a second one may mean "at once" to a program.
    if (std::ranges::find(ending_signals_, received->signal) != ending_signals_.end()) continue;
    signal_to_end(received->signal);
    next_ask = {};
  }
}

/// Handles an event, whatever the group is waiting for.
void WorkerGroup::handle(const JobEvent& event) {
  if (const auto* exited = std::get_if<WorkerExited>(&event)) {
    check_invariant(exited->index < workers_.size(), "only a started worker ends");
    record_exit(exited->index);
    workers_[exited->index].exit_seen = true;
    has_child_ended_ = true;  // it may have hidden others in the kernel's list
  } else if (std::holds_alternative<ChildEnded>(event)) {
    has_child_ended_ = true;
  } else if (std::holds_alternative<OwnFailure>(event)) {
    loop_failed_ = true;
  } else if (const auto* received = std::get_if<SignalReceived>(&event)) {
    EventRecord record{EventRecord::Kind::kSignal, JobEvents::Clock::now(), attempt_};
    record.signal = received->signal;
    log_.add(record);
    if (signals_.ends_job(received->signal)) {
      user_signals_.push_back(received->signal);
    } else if (received->signal == SIGTSTP) {
      suspend();
    } else {
      if (received->signal == SIGWINCH && on_window_change_) on_window_change_();
      pass_on(received->signal);
    }
  }
  if (has_child_ended_ && !events_.pending()) reap();
}

void WorkerGroup::record_exit(std::size_t index) {
  Worker& worker = workers_[index];
  if (worker.status) return;
  worker.status = try_reap(worker.process);
  if (!worker.status) return;
  worker.ended = JobEvents::Clock::now();
  worker.asked_to_end = !ending_signals_.empty();
  log_worker(EventRecord::Kind::kExited, index);
  check_group(worker);
}

void WorkerGroup::record_exits() {
  for (std::size_t i = 0; i < workers_.size(); ++i) record_exit(i);
}

/// Reaps children that have ended: processes that outlived their parents are children of ddprun, the
/// subreaper, and their end is the only sign that a group without its leader is empty.
void WorkerGroup::reap() {
  has_child_ended_ = false;
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    if (const auto index = running_worker(info.si_pid)) {
      const Worker& worker = workers_[*index];
      if (worker.process.pidfd && !worker.exit_seen) return;  // its event is queued and will call us again
      record_exit(*index);
      events_.push(WorkerExited{*index});
      continue;
    }
    const auto leader = index_of_.find(::getpgid(info.si_pid));
    ::waitpid(info.si_pid, nullptr, WNOHANG);
    if (leader == index_of_.end()) continue;
    if (Worker& worker = workers_[leader->second]; worker.status) check_group(worker);
  }
}

std::optional<std::size_t> WorkerGroup::running_worker(pid_t pid) const {
  const auto found = index_of_.find(pid);
  if (found == index_of_.end() || workers_[found->second].status) return {};
  return found->second;
}

void WorkerGroup::check_group(Worker& worker) {
  check_invariant(worker.status.has_value(), "a group is not gone while its leader lives");
  if (worker.group_gone || signal_group(worker.process, 0)) return;
  worker.group_gone = true;
  guard_.forget(worker.process.pid);
}

/// Looks at groups without a leader, and signals new strays: a worker may leave one behind as it ends.
/// Likewise the rest of a group whose program has ended. True if nothing is left.
bool WorkerGroup::look_for_processes() {
  for (Worker& worker : workers_) {
    if (!worker.status) continue;
    check_group(worker);
    if (!worker.asked.empty() && !worker.group_gone) ask_the_rest(worker);
  }
  const auto left = strays();
  if (!ending_signals_.empty()) {
    for (const pid_t pid : left) {
      if (!signalled_.insert({pid, ending_signals_.back()}).second) continue;
      ::kill(pid, ending_signals_.back());
      ::kill(pid, SIGCONT);  // a stopped process would not react
    }
    end_background();
  }
  return left.empty() && std::ranges::all_of(workers_, &Worker::group_gone);
}

void WorkerGroup::signal_all(int signal) {
  for (Worker& worker : workers_)
    if (!worker.group_gone) signal_group(worker.process, signal);
}

void WorkerGroup::pass_on(int signal) {
  if (ends_nobody(signal)) return signal_all(signal);
  const auto now = JobEvents::Clock::now();
  Offer offer{signal, now, now + kOfferPatience, {}};
  for (const Worker& worker : workers_)
    if (!worker.group_gone) offer.left.insert(worker.process.pid);
  offers_.push_back(std::move(offer));
  make_offers();
}

/// Signals the processes that do not die of it. Who would is a process that has just started, a shell without
/// a trap, a program's helper, or seems to for a moment: a thread that is waking up in sigwait() seems not to
/// wait, and one that starts a program to block all signals. So groups in which no process got it are asked
/// again for a while, and in the end their ranks are named. returns when to call again
JobEvents::Clock::time_point WorkerGroup::make_offers() {
  auto next = JobEvents::Clock::time_point::max();
  for (Offer& offer : offers_) {
    if (const auto begin = JobEvents::Clock::now(); begin >= offer.next) {
      std::set<pid_t> reached;
      // The programs first: looking for the other processes takes longer.
      for (const pid_t group : offer.left)
        if (running_worker(group) && take_signal(group, offer.signal)) reached.insert(group);
      for (const auto& [group, pids] : process_groups())
        if (offer.left.contains(group))
          for (const pid_t pid : pids)
            if (pid != group && !is_about_to_exec(pid) && take_signal(pid, offer.signal))
              reached.insert(group);
      std::erase_if(offer.left,
                    [&](pid_t group) { return reached.contains(group) || !running_worker(group); });
      const auto end = JobEvents::Clock::now();
      offer.next = end + std::max<JobEvents::Clock::duration>(kOfferLook, 10 * (end - begin));
    }
    if (JobEvents::Clock::now() >= offer.until && !offer.left.empty()) {
      std::vector<std::string> ranks;
      for (std::size_t i = 0; i < workers_.size(); ++i)
        if (offer.left.contains(workers_[i].process.pid))
          ranks.push_back("rank " + std::to_string(specs_[i].rank));
      log_info(signal_name(offer.signal) + " would end " + joined(ranks, ", ") +
               ": the signal is not passed on there");
      offer.left.clear();
    }
    if (!offer.left.empty()) next = std::min({next, offer.next, offer.until});
  }
  std::erase_if(offers_, [](const Offer& offer) { return offer.left.empty(); });
  return next;
}

void WorkerGroup::signal_to_end(int signal) {
  ending_signals_.push_back(signal);
  EventRecord record{signal == SIGKILL ? EventRecord::Kind::kKilled : EventRecord::Kind::kStopping,
                     JobEvents::Clock::now(), attempt_};
  record.signal = signal;
  log_.add(record);
  // Looking for the children of some must not delay the others.
  std::vector<Worker*> others;
  const bool saves = !whole_groups_ && signal != SIGKILL;
  for (Worker& worker : workers_) {
    worker.not_asked.clear();
    if (worker.group_gone) continue;
    if (saves && !worker.status) {
      worker.asked = {worker.process.pid};
      if (!acts_alone(worker.process.pid, signal)) {
        others.push_back(&worker);
        continue;
      }
    }
    ask_to_end(worker, signal);
  }
  for (Worker* worker : others) {
    worker->asked = program_below(worker->process.pid, signal, &worker->not_asked);
    ask_to_end(*worker, signal);
  }
  if (signal != SIGKILL) signal_all(SIGCONT);  // a stopped process would not react
  signalled_.clear();
  look_for_processes();
}

/// A program that saves its state as it ends still needs its children, such as the processes that load its
/// data: they get the signal when it has ended.
void WorkerGroup::ask_to_end(Worker& worker, int signal) {
  if (whole_groups_ || signal == SIGKILL || worker.asked.empty()) {
    worker.asked.clear();
    signal_group(worker.process, signal);
    return;
  }
  for (const pid_t pid : worker.asked)
    if ((pid == worker.process.pid && !worker.status) || is_member(pid, worker.process.pid))
      ::kill(pid, signal);
}

void WorkerGroup::ask_the_rest(Worker& worker) {
  const auto lives = [&](pid_t pid) { return is_member(pid, worker.process.pid); };
  if (std::ranges::any_of(worker.asked, lives)) return;
  worker.asked.clear();
  worker.not_asked.clear();
  signal_group(worker.process, ending_signals_.back());
}

/// Signals processes that the signal has not reached: those that ignored it while they waited for a child, as
/// in system(), and those that have left it to a child and go on without it. False if there are no more.
bool WorkerGroup::ask_who_goes_on() {
  const auto now = JobEvents::Clock::now();
  bool more = false;
  for (Worker& worker : workers_) {
    const pid_t group = worker.process.pid;
    std::erase_if(worker.not_asked, [&](NotAsked& process) {
      if (!is_member(process.pid, group)) return true;
      if (process.child == 0 && ignores(process.pid, ending_signals_.back())) return false;
      if (process.child != 0) {
        if (is_member(process.child, group)) return false;
        if (!process.child_gone) process.child_gone = now;
        if (now - *process.child_gone < kTimeToFollow) return false;
        worker.asked.push_back(process.pid);
      }
      ::kill(process.pid, ending_signals_.back());
      return true;
    });
    more = more || !worker.not_asked.empty();
  }
  return more;
}

/// For a program that handles the signal, does not pass it on and waits for its child.
void WorkerGroup::ask_all_the_rest() {
  const int signal = ending_signals_.back();
  auto groups = process_groups();
  for (Worker& worker : workers_) {
    if (worker.group_gone || worker.asked.empty()) continue;
    for (const pid_t pid : groups[worker.process.pid]) {
      if (std::ranges::find(worker.asked, pid) != worker.asked.end()) continue;
      ::kill(pid, signal);
      if (!ignores(pid, signal)) worker.asked.push_back(pid);
    }
    std::erase_if(worker.not_asked, [](const NotAsked& process) { return process.child != 0; });
  }
}

/// What a shell starts in the background ignores SIGINT: it gets SIGTERM once its program has ended.
void WorkerGroup::end_background() {
  const int signal = ending_signals_.back();
  if (signal == SIGTERM || signal == SIGKILL) return;
  const bool all_ended =
      std::ranges::all_of(workers_, [](const Worker& worker) { return worker.status.has_value(); });
  const auto may_end = [&](pid_t pid) {
    const auto leader = index_of_.find(::getpgid(pid));
    if (leader == index_of_.end() || workers_[leader->second].group_gone)
      return all_ended && guard_.is_of_job(pid);
    const Worker& worker = workers_[leader->second];
    return worker.status && worker.asked.empty();
  };
  for (const pid_t pid : children(may_end))
    if (ignores(pid, signal) && signalled_.insert({pid, SIGTERM}).second) ::kill(pid, SIGTERM);
}

/// Ctrl-Z. The kernel ignores an unhandled SIGTSTP in the workers' own sessions, so send SIGSTOP to them.
void WorkerGroup::suspend(int signal) {
  const auto begin = JobEvents::Clock::now();
  signal_all(SIGSTOP);
  stop_by_terminal(signal);
  may_be_in_background_ = ::isatty(STDIN_FILENO) == 1;
  signal_all(SIGCONT);
  resumed_ = JobEvents::Clock::now();
  stopped_ += resumed_ - begin;
}

/// After `bg`, the shell has the terminal's input. The kernel does not stop rank 0, which has its own
/// session, when it reads it all the same: stop the job, as the kernel would.
void WorkerGroup::stay_off_terminal() {
  if (!may_be_in_background_ || may_read_stdin()) return;
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (specs_[i].reads_stdin && !workers_[i].group_gone &&
        reads_terminal(program_of(workers_[i].process.pid, SIGTTIN)))
      suspend(SIGTTIN);
}

/// Ends the processes that replaced workers have left behind, when their time is over. returns  the next time
JobEvents::Clock::time_point WorkerGroup::kill_leftovers(JobEvents::Clock::time_point now) {
  auto next = JobEvents::Clock::time_point::max();
  std::erase_if(leftovers_, [&](const auto& leftover) {
    const auto& [group, until] = leftover;
    if (now < until) next = std::min(next, until);
    if (now < until) return false;
    // Only while a process of ours is in it: another group may have its number by now.
    const auto is_in_it = [group = group](pid_t pid) { return ::getpgid(pid) == group; };
    if (std::ranges::any_of(strays(), is_in_it)) ::kill(-group, SIGKILL);
    return true;
  });
  return next;
}

/// Our children that came from a worker and are not in its group.
std::vector<pid_t> WorkerGroup::strays() const {
  return children([&](pid_t pid) {
    if (running_worker(pid)) return false;
    const auto leader = index_of_.find(::getpgid(pid));
    return (leader == index_of_.end() || workers_[leader->second].group_gone) && guard_.is_of_job(pid);
  });
}

void WorkerGroup::log_worker(EventRecord::Kind kind, std::size_t index) const {
  const Worker& worker = workers_[index];
  const auto at = kind == EventRecord::Kind::kStarted  ? worker.started
                  : kind == EventRecord::Kind::kExited ? worker.ended
                                                       : JobEvents::Clock::now();
  EventRecord record{kind, at, worker.attempt};
  record.rank = specs_[index].rank;
  record.local_rank = specs_[index].local_rank;
  record.pid = worker.process.pid;
  record.status = worker.status;
  log_.add(record);
}

std::string WorkerGroup::ranks_left() const {
  std::string text;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].group_gone) continue;
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(specs_[i].rank) + " (pid " +
            std::to_string(workers_[i].process.pid) + (workers_[i].status ? ", its children)" : ")");
  }
  for (const pid_t pid : strays()) text += (text.empty() ? "pid " : ", pid ") + std::to_string(pid);
  return text;
}

std::vector<pid_t> WorkerGroup::processes_left() const {
  std::vector<pid_t> pids = strays();
  auto groups = process_groups();
  for (const Worker& worker : workers_) {
    if (worker.group_gone) continue;
    const auto& members = groups[worker.process.pid];
    pids.insert(pids.end(), members.begin(), members.end());
  }
  return pids;
}

}  // namespace ddprun::launcher
