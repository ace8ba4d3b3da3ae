#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "launcher/events/restart_policy.h"
#include "launcher/rendezvous/coordinator.h"
#include "launcher/rendezvous/endpoint.h"
#include "launcher/rendezvous/message.h"

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

  /// Somebody else knows where to ask.
  void ask_at(Endpoint endpoint) { settings_.endpoints = {std::move(endpoint)}; }

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

// How the nodes of a job with several endpoints find its coordinator, and who replaces a lost one.

/// The endpoints in the order in which a node asks for the coordinator. A new node asks the first one last,
/// because another may have taken over. After a loss the lost one comes first, then its successors.
inline std::vector<Endpoint> in_order_of_asking(std::vector<Endpoint> endpoints,
                                                const std::optional<Endpoint>& lost) {
  const auto first = lost ? std::find(endpoints.begin(), endpoints.end(), *lost) : endpoints.begin() + 1;
  std::rotate(endpoints.begin(), first, endpoints.end());
  return endpoints;
}

/// Whether an endpoint's own host may run the coordinator, if nobody answers there. After a loss the
/// successors take turns, and each asks all endpoints before it takes its own: another one may have taken
/// over while this node ended its workers.
///
/// place       in the order of asking
/// since_loss  nullopt: no loss, and the endpoint asked last is the job's first
/// asked_all   since the loss
inline bool may_host(std::size_t place, std::size_t endpoints,
                     std::optional<std::chrono::steady_clock::duration> since_loss, bool asked_all,
                     std::chrono::milliseconds node_timeout) {
  if (!since_loss) return place + 1 == endpoints;
  return asked_all && place > 0 && *since_loss >= 2 * (static_cast<int>(place) - 1) * node_timeout;
}

/// How long a node that looks for a successor waits for an endpoint that is silent: short enough that
/// the first one has asked them all before the second one's turn.
inline std::chrono::milliseconds connect_timeout_after_loss(std::chrono::milliseconds node_timeout) {
  return std::min(node_timeout / 4, std::chrono::milliseconds(5'000));
}

/// A node's part in a job, whoever has the coordinator: what it tells the next one, and where it looks for
/// it.
class Membership {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// endpoints  the job's first one and its successors
  /// now        the beginning of the search for the coordinator
  /// elects     any node may take the coordinator's place, wherever it is
  Membership(const MeetingRules& rules, const RestartSettings& restarts, std::vector<Endpoint> endpoints,
             Time now, bool elects = false)
      : rules_(&rules),
        restarts_(&restarts),
        endpoints_(std::move(endpoints)),
        elects_(elects),
        asking_since_(now) {}

  void take(const Waiting& waiting) { stands_by_ = waiting.spare; }
  void take(const Start& start, Time now) {
    in_round_ = true;
    former_ = {start.number,
               start.group_world_size,
               start.group_rank,
               start.restart_count,
               false,
               start.restarts_used,
               {},
               start.job};
    round_since_ = now;
    handed_over_ = false;
    left_ = 0;
    coordinator_votes_ = !start.coordinator_stands_by;
  }
  /// Nodes that have left have no vote any more, nor has the coordinator's own if it leaves.
  void take(const Stop& stop, Time now) {
    former_.nodes = std::max(former_.nodes + std::exchange(left_, stop.left) - stop.left, 1);
    if (!stop.hands_over) return;
    handed_over_ = true;
    former_.restarts = stop.hands_over->restarts;
    former_.restarts_used = stop.hands_over->restarts_used;
    former_.nobody_listens = coordinator_votes_;
    pause_end_ = now + std::chrono::milliseconds(stop.hands_over->pause_ms);
  }

  bool in_round() const { return in_round_; }
  /// Whether the node takes part or stands by, so that a lost coordinator has to be replaced.
  bool is_member() const { return in_round_ || stands_by_; }

  /// The coordinator at that endpoint is lost, or does not want this node. False: the node's job ends with
  /// it.
  ///
  /// told        what the node told that coordinator when it joined
  /// hung_up     the connection ended; if false, nothing was heard for too long
  /// ended_here  it was in this ddprun, and has ended the job
  bool look_again(const Endpoint& coordinator, const FormerRound& told, bool hung_up, bool ended_here,
                  Time now) {
    if (in_round_ && !handed_over_ && restarts_->window && now - round_since_ >= *restarts_->window)
      former_.restarts_used = 0;
    const bool goes_on = rules_->min_nodes < rules_->max_nodes || rules_->spares > 0 ||
                         former_.restarts_used < restarts_->max_restarts;
    if ((endpoints_.size() < 2 && !elects_) || !goes_on || ended_here) return false;
    if (told.number == former_.number && !handed_over_) former_ = told;
    const auto pause = std::chrono::ceil<std::chrono::milliseconds>(pause_end_ - now).count();
    former_.pause_ms = pause > 0 ? std::optional(static_cast<int>(pause)) : std::nullopt;
    if (is_member()) lost_ = coordinator, asking_since_ = now;
    const bool matters = hung_up && !handed_over_ && coordinator_votes_;
    may_have_ended_ = std::exchange(in_round_, false) && matters ? lost_ : std::nullopt;
    stands_by_ = handed_over_ = false;
    asking_again_since_ = now;
    return true;
  }

  std::vector<Endpoint> endpoints() const { return in_order_of_asking(endpoints_, lost_); }

  /// As the function; place and asked_all count since the last look_again().
  bool may_host(std::size_t place, bool asked_all, Time now) const {
    const auto since_loss = lost_ ? std::optional(now - asking_again_since_) : std::nullopt;
    return launcher::may_host(place, endpoints_.size(), since_loss, asked_all, rules_->node_timeout);
  }

  /// The coordinator that this node is about to lose has said so.
  bool handed_over() const { return handed_over_; }
  const FormerRound& former() const { return former_; }  ///< the last round
  /// Where the last coordinator was lost while this node took part or stood by.
  const std::optional<Endpoint>& lost() const { return lost_; }
  /// lost(), if the connection to it ended and its node took part: its ddprun may have ended, too, and with
  /// it a vote.
  const std::optional<Endpoint>& may_have_ended() const { return may_have_ended_; }
  Time asking_since() const { return asking_since_; }  ///< since that loss, or the start

 private:
  const MeetingRules* rules_;
  const RestartSettings* restarts_;
  std::vector<Endpoint> endpoints_;
  bool elects_;
  FormerRound former_;
  Time round_since_;
  bool in_round_ = false;  ///< since this node came to its coordinator
  bool stands_by_ = false;
  int left_ = 0;                   ///< of the last round's nodes, as the last Stop said
  bool handed_over_ = false;       ///< the coordinator, since the last round
  bool coordinator_votes_ = true;  ///< its own node takes part in that round
  Time pause_end_;                 ///< before a restart
  std::optional<Endpoint> lost_, may_have_ended_;
  Time asking_since_, asking_again_since_;
};

}  // namespace ddprun::launcher
