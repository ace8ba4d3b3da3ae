#include <ddprun/group/signal_thread.h>

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include <ddprun/common/errors.h>

namespace ddprun::ddp {
namespace {

std::atomic<int> event_of_handler = -1;
constexpr std::uint64_t kEnd = std::uint64_t{1} << 32;  // larger than any number of unread signals

void on_signal(int) {
  const int error = errno;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event_of_handler.load(), &one, sizeof one);
  errno = error;
}

void serve(int event, const std::function<void()>& act) {
  for (;;) {
    std::uint64_t count = 0;
    const auto size = ::read(event, &count, sizeof count);
    if (size < 0 && errno == EINTR) continue;
    if (size != sizeof count || count >= kEnd) return;
    act();
  }
}

}  // namespace

SignalThread::SignalThread(int signal, std::function<void()> act)
    : signal_(signal), event_(::eventfd(0, EFD_CLOEXEC)) {
  if (!event_) throw std::system_error(errno, std::generic_category(), "eventfd");
  int none = -1;
  ensure(event_of_handler.compare_exchange_strong(none, event_.get()), "one SignalThread at a time");
  thread_ = std::jthread([event = event_.get(), act = std::move(act)] { serve(event, act); });
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(signal_, &action, &before_);
}

SignalThread::~SignalThread() {
  ::sigaction(signal_, &before_, nullptr);
  [[maybe_unused]] const auto written = ::write(event_.get(), &kEnd, sizeof kEnd);
  thread_.join();
  event_of_handler = -1;
}

}  // namespace ddprun::ddp
