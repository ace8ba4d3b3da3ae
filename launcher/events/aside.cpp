#include "launcher/events/aside.h"

#include <fcntl.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <exception>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include <ddprun/common/files.h>
#include "launcher/events/timer.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

constexpr std::chrono::milliseconds kLook{100};

struct Aside {
  std::function<void()> work;
  std::exception_ptr thrown;
  UniqueFd done{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};

  void run() {
    try {
      work();
    } catch (...) {
      thrown = std::current_exception();
    }
    ::eventfd_write(done.get(), 1);
  }
};

}  // namespace

bool start_thread(std::function<void()> work) {
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the loop handles signals
  bool started = true;
  try {
    std::thread(std::move(work)).detach();
  } catch (const std::system_error&) {
    started = false;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

asio::awaitable<AsideEnd> run_aside(std::function<void()> work,
                                    std::optional<std::chrono::steady_clock::time_point> deadline,
                                    const std::function<bool()>* give_up) {
  const auto aside = std::make_shared<Aside>();
  aside->work = std::move(work);
  const auto executor = co_await asio::this_coro::executor;
  asio::posix::stream_descriptor done(executor);
  const int fd = ::fcntl(aside->done.get(), F_DUPFD_CLOEXEC, 3);
  if (fd >= 0) done.assign(fd);
  if (fd < 0 || !start_thread([aside] { aside->run(); })) {
    aside->work();
    co_return AsideEnd::kDone;
  }
  // The handler may already be queued when a deadline lets the caller go on without it.
  const auto timer = std::make_shared<Timer>(executor);
  const auto finished = std::make_shared<bool>(false);
  done.async_wait(done.wait_read, [timer, finished](const boost::system::error_code& error) {
    if (error) return;  // the caller has gone
    *finished = true;
    timer->cancel();
  });
  while (!*finished) {
    const auto now = LoopClock::now(), end = deadline.value_or(LoopClock::time_point::max());
    if (now >= end) co_return AsideEnd::kLate;
    if (give_up != nullptr && (*give_up)()) co_return AsideEnd::kGivenUp;
    timer->expires_at(give_up != nullptr ? std::min(end, now + kLook) : end);
    boost::system::error_code cancelled;
    co_await timer->async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
  }
  if (aside->thrown) std::rethrow_exception(aside->thrown);
  co_return AsideEnd::kDone;
}

}  // namespace ddprun::launcher
