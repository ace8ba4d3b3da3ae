#include <ddprun/train/loop/stop_signals.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include <ddprun/flight/watchdog.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/rounds.h>

namespace ddprun::train {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

std::atomic<bool> usr1_came = false, taken_over = false;
std::atomic<int> ending = 0;  // the signal received: SIGTERM or SIGINT
std::atomic<int> event_of_handler = -1, saving = 0;
std::atomic<std::int64_t> last_progress_ms = 0;
std::atomic<std::int64_t> longest_ms[2];  // interval of each Work; 0: none yet
std::atomic<Work> current_work = Work::kTraining;

std::int64_t now_ms() {
  return std::chrono::duration_cast<Milliseconds>(Clock::now().time_since_epoch()).count();
}

void wake(int event, std::uint64_t count) {
  [[maybe_unused]] const auto written = ::write(event, &count, sizeof count);
}

void on_signal(int signal) {
  const int error = errno;
  if (signal == SIGUSR1) {
    usr1_came = true;
  } else {
    if (ending.exchange(signal) == SIGINT && signal == SIGINT) {
      ::signal(SIGINT, SIG_DFL);
      ::raise(SIGINT);  // takes effect when this handler returns
    }
    wake(event_of_handler, 1);
  }
  errno = error;
}

/// Waits until the event is written to or the timeout passes; negative: forever.
bool wait_for(int event, std::int64_t timeout_ms) {
  pollfd entry{event, POLLIN, 0};
  const int ready = ::poll(&entry, 1, static_cast<int>(timeout_ms));
  if (ready <= 0) return false;
  std::uint64_t count = 0;
  [[maybe_unused]] const auto size = ::read(event, &count, sizeof count);
  return true;
}

constexpr std::int64_t kPatienceMs = 3000, kFirstPatienceMs = 30000, kLookMs = 20, kReaderPatienceMs = 1000;
constexpr double kSecondsBetween = 0.5;
constexpr double kMostSteps = 1000;

std::atomic<std::int64_t>& longest_of(Work work) { return longest_ms[static_cast<int>(work)]; }

std::int64_t patience_ms() {
  const std::int64_t longest = longest_of(current_work);
  return longest == 0 ? kFirstPatienceMs : std::max(kPatienceMs, 3 * longest);
}

/// What reads this process's stdout or stderr.
class OutputReader {
 public:
  explicit OutputReader(int fd) : fd_(fd) {}

  /// If it has read nothing since the last call, and leaves no room, what is written there leads nowhere from
  /// now on. The signal, which asks for a checkpoint that is due anyway, makes threads that wait try again.
  ///
  /// written  by the training so far: what is unread may be as much as before because more was written
  void drop_if_stalled(const std::string& written) {
    pollfd entry{fd_, POLLOUT, 0};
    int unread = kNone;
    // Of a socket, FIONREAD would count what this process has not read.
    if (::poll(&entry, 1, 0) == 0 && ::ioctl(fd_, TIOCOUTQ, &unread) != 0) ::ioctl(fd_, FIONREAD, &unread);
    const bool is_read = unread != std::exchange(unread_, unread) || written != written_;
    written_ = written;
    if (unread == kNone || is_read) return;
    const UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    if (!nowhere || ::dup2(nowhere.get(), fd_) < 0) return;
    std::error_code error;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", error))
      ::tgkill(::getpid(), std::stoi(thread.path().filename()), SIGUSR1);
  }

 private:
  static constexpr int kNone = -1;
  int fd_, unread_ = kNone;  // bytes
  std::string written_;
};

/// take_effect  lets a signal do what it would do without us
void watch(const std::stop_token& stop, int event, const ddp::ProcessGroup& group, pid_t training,
           const std::function<void(int)>& take_effect) {
  const auto io = "/proc/self/task/" + std::to_string(training) + "/io";
  std::int64_t since = 0;  // when the signal was seen
  std::int64_t next_look = 0;
  OutputReader readers[] = {OutputReader(STDOUT_FILENO), OutputReader(STDERR_FILENO)};
  while (!stop.stop_requested()) {
    if (ending == 0) {
      wait_for(event, -1);
      continue;
    }
    if (since == 0) since = now_ms();
    if (now_ms() >= next_look) {
      next_look = now_ms() + kReaderPatienceMs;
      for (OutputReader& reader : readers) reader.drop_if_stalled(read_or_empty(io));
    }
    const auto left = std::max(last_progress_ms + patience_ms(), since + kPatienceMs) - now_ms();
    const bool broken = ddp::collective_failed() || group.has_lost_a_rank();
    if (taken_over || (!broken && (saving > 0 || left > 0))) {
      wait_for(event, kLookMs);
    } else {
      take_effect(ending);
      return;
    }
  }
}

}  // namespace

void note_progress(Work work) {
  ddp::Rounds::check();
  const auto now = now_ms();
  const auto interval = std::max<std::int64_t>(1, now - last_progress_ms.exchange(now));
  if (current_work.exchange(work) != work) return;
  auto& longest = longest_of(work);
  longest = std::max<std::int64_t>(longest, interval);
}

void begin_work(Work work) {
  last_progress_ms = now_ms();
  current_work = work;
}

int ending_signal() { return ending == SIGINT ? SIGINT : SIGTERM; }

Saving::Saving() { ++saving; }
Saving::~Saving() {
  last_progress_ms = now_ms();
  --saving;
}

StopSignals::StopSignals(const ddp::ProcessGroup& group) : event_(::eventfd(0, EFD_CLOEXEC)) {
  if (!event_) throw std::system_error(errno, std::generic_category(), "eventfd");
  usr1_came = taken_over = false;
  ending = saving = 0;
  event_of_handler = event_.get();
  for (auto& longest : longest_ms) longest = 0;
  begin_work(Work::kTraining);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &action, &term_);
  ::sigaction(SIGUSR1, &action, &usr1_);
  ::sigaction(SIGINT, nullptr, &int_);
  if (int_.sa_handler != SIG_IGN)
    ::sigaction(SIGINT, &action, nullptr);  // a shell's background job ignores it
  watch_ = std::jthread([this, &group, training = ::gettid()](const std::stop_token& stop) {
    watch(stop, event_.get(), group, training, [this](int signal) {
      ::sigaction(signal, signal == SIGINT ? &int_ : &term_, nullptr);
      ::kill(::getpid(), signal);
    });
  });
}

void StopSignals::restore() {
  if (watch_.joinable()) {  // first: it may still signal this process
    watch_.request_stop();
    wake(event_.get(), 1);
    watch_.join();
  }
  ::signal(SIGUSR1, SIG_IGN);  // drops what the watch has sent to threads that have not taken it yet
  ::sigaction(SIGTERM, &term_, nullptr);
  ::sigaction(SIGINT, &int_, nullptr);
  ::sigaction(SIGUSR1, &usr1_, nullptr);
}

StopSignals::~StopSignals() {
  const int before = ending;
  restore();
  event_of_handler = -1;
  if (ending != before) ::raise(ending);  // it came meanwhile
}

bool StopSignals::terminate() const { return ending != 0; }
bool StopSignals::take_save() { return usr1_came.exchange(false); }
void StopSignals::take_over() {
  taken_over = true;
  wake(event_.get(), 1);
}

void StopSignals::release() {
  restore();
  if (ending != 0) ::raise(ending);
}

StopAgreement::StopAgreement(const ddp::ProcessGroup& group, double max_seconds,
                             std::function<bool()> can_keep)
    : group_(group), max_seconds_(max_seconds), can_keep_(std::move(can_keep)), signals_(group) {}

Requests StopAgreement::after_step() {
  note_progress(Work::kTraining);
  return ++steps_.steps >= steps_.next || group_.size() == 1 ? exchange(steps_) : Requests{};
}

Requests StopAgreement::after_evaluating() {
  auto& pace = evaluation_;
  return ++pace.steps >= pace.next || group_.size() == 1 ? exchange(pace) : Requests{};
}

Requests StopAgreement::exchange(Pace& pace) {
  const auto time = Clock::now();
  const auto seconds = [&](Clock::time_point since) {
    return std::chrono::duration<double>(time - since).count();
  };
  const double step = seconds(pace.last) / static_cast<double>(std::max<std::int64_t>(pace.steps, 1));
  const bool late = max_seconds_ > 0 && seconds(begin_) >= max_seconds_;
  const bool busy = !can_keep_ || !can_keep_();
  const auto agreed =
      ddp::all_reduce_max(group_, {signals_.terminate() ? 1.0 : 0.0, signals_.take_save() ? 1.0 : 0.0,
                                   late ? 1.0 : 0.0, step, busy ? 1.0 : 0.0});
  pace = {
      time, 0,
      static_cast<std::int64_t>(std::clamp(kSecondsBetween / std::max(agreed[3], 1e-6), 1.0, kMostSteps))};
  if (agreed[0] > 0) signals_.take_over();
  return {agreed[0] > 0, agreed[1] > 0, agreed[2] > 0, agreed[4] == 0};
}

void StopAgreement::end(const std::function<void()>& save) {
  signals_.take_over();
  save();
  ddp::all_reduce_max(group_, {0});  // otherwise the first to end would make the others end, too
  signals_.release();
}

}  // namespace ddprun::train
