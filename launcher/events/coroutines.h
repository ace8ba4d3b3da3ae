#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

namespace ddprun::launcher {

/// Waits until the timer is cancelled. False at the deadline.
inline boost::asio::awaitable<bool> woken(boost::asio::steady_timer& timer,
                                          std::optional<std::chrono::steady_clock::time_point> deadline) {
  timer.expires_at(deadline.value_or(std::chrono::steady_clock::time_point::max()));
  boost::system::error_code cancelled;
  co_await timer.async_wait(boost::asio::redirect_error(boost::asio::use_awaitable, cancelled));
  co_return cancelled.failed();
}

/// Serves each client with the coroutine serve(socket), at most so many at a time: closes further ones.
template <typename Acceptor, typename Serve>
boost::asio::awaitable<void> accept_clients(Acceptor acceptor, int most, Serve serve) {
  constexpr std::chrono::seconds kPause{1};
  const auto clients = std::make_shared<int>(0);
  for (;;) {
    boost::system::error_code error;
    auto socket =
        co_await acceptor.async_accept(boost::asio::redirect_error(boost::asio::use_awaitable, error));
    if (error) {  // for instance no descriptor left
      boost::asio::steady_timer pause(acceptor.get_executor(), kPause);
      co_await pause.async_wait(boost::asio::redirect_error(boost::asio::use_awaitable, error));
    } else if (*clients < most) {
      ++*clients;
      boost::asio::co_spawn(acceptor.get_executor(), serve(std::move(socket)),
                            [clients](const std::exception_ptr&) { --*clients; });
    }
  }
}

}  // namespace ddprun::launcher
