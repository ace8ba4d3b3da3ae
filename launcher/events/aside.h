#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <functional>
#include <optional>

namespace ddprun::launcher {

/// Starts a thread that no signal reaches, and that may outlive the caller. False if none can be had.
bool start_thread(std::function<void()> work);

enum class AsideEnd { kDone, kLate, kGivenUp };

/// Runs work on a thread of its own: a stalled disk or a name server may hold it up, but never the event
/// loop. Where no thread can be had, runs it at once.
///
/// work      must own all that it uses: it may outlive the caller. Pass a variable: GCC 12 destroys a
///           temporary of a co_await twice
/// deadline  until when to wait for it; nullopt: until it is done
/// give_up   looked at ten times a second; null: never
/// returns   kLate, kGivenUp: the work goes on alone
/// throws    what the work throws
boost::asio::awaitable<AsideEnd> run_aside(
    std::function<void()> work, std::optional<std::chrono::steady_clock::time_point> deadline = std::nullopt,
    const std::function<bool()>* give_up = nullptr);

}  // namespace ddprun::launcher
