#include "launcher/events/aside.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
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

asio::awaitable<bool> run_aside(std::function<void()> work,
                                std::optional<std::chrono::steady_clock::time_point> deadline,
                                const std::function<bool()>* give_up) {
  const auto aside = std::make_shared<Aside>();
  aside->work = std::move(work);
  if (!aside->done) throw std::system_error(errno, std::generic_category(), "eventfd");
  const auto executor = co_await asio::this_coro::executor;
  asio::posix::stream_descriptor done(executor, ::dup(aside->done.get()));
  Timer timer(executor);
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the loop handles signals
  std::thread([aside] { aside->run(); }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  bool finished = false;
  done.async_wait(done.wait_read, [&](const boost::system::error_code& error) {
    if (error) return;  // the caller has gone
    finished = true;
    timer.cancel();
  });
  while (!finished) {
    const auto now = LoopClock::now(), end = deadline.value_or(LoopClock::time_point::max());
    if (now >= end) co_return false;
    if (give_up != nullptr && (*give_up)()) co_return false;
    timer.expires_at(give_up != nullptr ? std::min(end, now + kLook) : end);
    boost::system::error_code cancelled;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
  }
  if (aside->thrown) std::rethrow_exception(aside->thrown);
  co_return true;
}

}  // namespace ddprun::launcher
