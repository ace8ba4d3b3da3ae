#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "launcher/rendezvous/endpoint.h"

namespace ddprun::launcher {

/// How a node looks for its job's coordinator: which endpoint it asks next, and when it gives up. Pure:
/// answers come in with their time.
class Search {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Settings {
    std::vector<Endpoint> endpoints;  ///< in the order of asking
    /// Where the coordinator was until the connection to it ended: whether its ddprun has ended, too, and
    /// cannot have continued without this node. nullopt: it may have continued.
    std::optional<Endpoint> former;
    Time since;  ///< the beginning of
    std::chrono::milliseconds timeout{600'000};
    std::chrono::milliseconds connect_timeout{5'000};  ///< for an attempt at one address
    std::chrono::milliseconds longest_pause{1'000};    ///< after all have been asked
  };

  Search(Settings settings, Time now)
      : settings_(std::move(settings)), told_(now >= settings_.since + kNoticeAfter) {}

  /// Why an endpoint does not take the node in. kUnknown: it could not even be asked.
  enum class Answer { kRefused, kHungUp, kSilent, kNotOurs, kUnknown };

  struct Next {
    bool gives_up = false;
    bool tells = false;  ///< the user, once, that it takes long
    /// Before the next endpoint is asked.
    std::chrono::milliseconds pause{0};
  };

  /// The endpoint has answered, and the node asks the next one.
  Next answered(Answer answer, Time now) {
    if (asks_former_ && endpoint() == settings_.former && answer != Answer::kUnknown) {
      // A ddprun that is just ending may still accept a connection: ask again, soon.
      asks_former_ = answer == Answer::kHungUp;
      if (asks_former_ && !accepted_at_) accepted_at_ = now;
      nobody_listens_ =
          answer == Answer::kRefused && now - accepted_at_.value_or(now) < settings_.connect_timeout;
    }
    if (place_ + 1 < settings_.endpoints.size()) {
      ++place_;
      return {};
    }
    const auto waited = now - settings_.since;
    const auto pause = std::exchange(pause_, std::min(2 * pause_, settings_.longest_pause));
    if (waited + pause >= settings_.timeout) return {.gives_up = true};
    place_ = 0;
    asked_all_ = true;
    const bool tells = waited >= kNoticeAfter && !std::exchange(told_, true);
    return {false, tells, pause};
  }

  const Endpoint& endpoint() const { return settings_.endpoints[place_]; }  ///< that is asked
  std::size_t place() const { return place_; }                              ///< of it
  bool is_last() const { return place_ + 1 == settings_.endpoints.size(); }
  bool asked_all() const { return asked_all_; }
  /// At the former coordinator's endpoint: its ddprun has ended.
  bool nobody_listens() const { return nobody_listens_; }

 private:
  static constexpr std::chrono::milliseconds kNoticeAfter{3'000};

  Settings settings_;
  std::size_t place_ = 0;
  bool asked_all_ = false;
  std::chrono::milliseconds pause_{50};
  bool told_;
  bool asks_former_ = true;  ///< whether the next answer there counts
  std::optional<Time> accepted_at_;
  bool nobody_listens_ = false;
};

}  // namespace ddprun::launcher
