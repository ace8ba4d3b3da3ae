#include <ddprun/group/rounds.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <c10/core/CPUAllocator.h>

#include <ddprun/common/logging.h>
#include <ddprun/common/recovery.h>
#include <ddprun/flight/record_collectives.h>
#include <ddprun/flight/watchdog.h>
#include <ddprun/group/backends.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddprun::ddp {
namespace {

using Clock = std::chrono::steady_clock;

/// The time between a round's start and the point when this rank must have left the previous one, if that had
/// batches: none takes this long, but loading data may.
constexpr std::chrono::seconds kLeaveWithin{60};
/// The time between a round's start and aborting the previous one's collectives: a silent host closes no
/// connection, and Gloo does not notice one that closes in the middle of a message.
constexpr std::chrono::milliseconds kAbortAfter{300};

thread_local bool leaves_at_once = false;

}  // namespace

struct Rounds::State {
  inline static std::atomic<State*> of_process = nullptr;

  WorkerEnv env;  // this round's; used by the program's thread
  std::optional<int> fd;
  UniqueFd stop_event;  // tells the thread to end
  std::atomic<bool> over = false;
  std::atomic<bool> checked = false;  // this round has had a batch
  std::mutex mutex;
  std::condition_variable told;
  std::optional<ReceivedNotice> newest;  // later than env
  std::optional<Clock::time_point> abort_at, leave_until;
  std::shared_future<void> leaving;  // NCCL's communicators are being aborted
  std::thread thread;

  void watch() {
    pollfd entries[] = {{*fd, POLLIN, 0}, {stop_event.get(), POLLIN, 0}};
    for (;;) {
      const bool waits = (std::scoped_lock(mutex), abort_at.has_value());
      const int ready = ::poll(entries, 2, waits ? 100 : -1);
      if (entries[1].revents != 0) return;
      if (ready == 0) make_leave();
      if ((entries[0].revents & POLLIN) != 0) take();
      if ((entries[0].revents & (POLLHUP | POLLERR)) != 0) entries[0].fd = -1;  // ddprun is gone
    }
  }

  /// Makes this rank leave its round, once that is over.
  void make_leave() {
    std::unique_lock lock(mutex);
    if (!abort_at || Clock::now() < *abort_at) return;
    abort_at = Clock::now() + std::chrono::seconds(1);
    const auto abort = abort_of_cpu_groups();  // of none that is made once the lock is free
    lock.unlock();
    abort();
    lock.lock();
    if (!leave_until || Clock::now() < *leave_until) return;
    log_error("another rank was lost, and this one could not leave its round within " +
              std::to_string(kLeaveWithin.count()) + " s");
    ::raise(SIGKILL);  // a lost rank, for --restart-on-codes too
  }

  void take() {
    auto received = receive_notice(*fd);
    if (!received) return;
    const std::scoped_lock lock(mutex);
    if (received->notice.round <= env.round) return;
    newest = std::move(received);
    if (!abort_at) abort_at = Clock::now() + kAbortAfter;
    if (!leave_until && checked) leave_until = Clock::now() + kLeaveWithin;
    over = true;
    // Not in this thread: if it takes too long, this thread ends the process.
    if (auto backends = take_nccl_backends(); !backends.empty())
      leaving = std::async(std::launch::async, [backends = std::move(backends)] {
                  for (const auto& backend : backends) try {
                      backend->abort();
                    } catch (const std::exception& error) {
                      log_warning(std::string("cannot abort NCCL's communicator: ") + error.what());
                    }
                }).share();
    told.notify_all();
  }

  bool wait(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex);
    return told.wait_for(lock, patience, [this] { return newest.has_value(); });
  }

  void go_on() {
    std::unique_lock lock(mutex);
    if (const auto before = leaving; before.valid()) {
      lock.unlock();
      before.wait();
      lock.lock();
    }
    const RoundNotice& notice = newest->notice;
    env.round = notice.round;
    env.restart_count = notice.restart_count;
    env.master_addr = notice.master_addr;
    env.master_port = notice.master_port;
    env.store_fd = std::nullopt;
    if (newest->store) env.store_fd = newest->store.release();  // the store closes it
    newest.reset();
    abort_at.reset();
    leave_until.reset();
    over = checked = false;
  }
};

namespace {

/// LibTorch's, but for LeaveAtOnce.
class LeavingAllocator final : public c10::Allocator {
 public:
  explicit LeavingAllocator(c10::Allocator& all) : all_(all) {}
  c10::DataPtr allocate(std::size_t bytes) override {
    if (leaves_at_once) Rounds::check();
    return all_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return all_.raw_deleter(); }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    all_.copy_data(target, source, bytes);
  }

 private:
  c10::Allocator& all_;
};

}  // namespace

Rounds::Rounds(const WorkerEnv& env) : state_(std::make_shared<State>()) {
  state_->env = env;
  struct stat info {};  // the variable may be left over from elsewhere
  if (!env.round_fd || ::fstat(*env.round_fd, &info) != 0 || !S_ISSOCK(info.st_mode)) return;
  ::fcntl(*env.round_fd, F_SETFD, FD_CLOEXEC);
  state_->fd = env.round_fd;
  state_->stop_event.reset(::eventfd(0, EFD_CLOEXEC));
  state_->thread = std::thread([state = state_.get()] { state->watch(); });
  State::of_process = state_.get();
  static LeavingAllocator allocator(*c10::GetCPUAllocator());
  c10::SetCPUAllocator(&allocator);
  // A lost rank needs no explanation: ddprun has reported it by then.
  set_failure_is_known([state = state_](auto within) { return state->wait(within); });
}

Rounds::~Rounds() {
  if (!enabled()) return;
  set_failure_is_known(nullptr);
  State::of_process = nullptr;
  ::eventfd_write(state_->stop_event.get(), 1);
  state_->thread.join();
}

bool Rounds::enabled() const { return state_->fd.has_value(); }

void Rounds::announce(bool can_go_on) const {
  if (enabled()) send_abilities(*state_->fd, {can_go_on, can_stand_by()});
}

const WorkerEnv& Rounds::env() const { return state_->env; }

ProcessGroup::Options Rounds::options(ProcessGroup::Options options) const {
  if (enabled()) options.give_up = [state = state_] { return state->over.load(); };
  return options;
}

void Rounds::check() {
  State* state = State::of_process.load();
  if (state == nullptr) return;
  state->checked = true;
  if (state->over) throw RoundOver();
}

void Rounds::leave() {
  State* state = State::of_process.load();
  if (state == nullptr) return;
  const std::scoped_lock lock(state->mutex);
  state->leave_until.reset();
  state->checked = false;
}

bool Rounds::next() {
  const bool several_nodes = env().group_world_size > 1;
  if (!enabled() || !state_->wait(std::chrono::milliseconds(several_nodes ? 3000 : 500))) return false;
  state_->go_on();
  return true;
}

LeaveAtOnce::LeaveAtOnce() { leaves_at_once = true; }
LeaveAtOnce::~LeaveAtOnce() { end(); }
void LeaveAtOnce::end() { leaves_at_once = false; }

}  // namespace ddprun::ddp
