#pragma once

#include <algorithm>
#include <chrono>
#include <climits>

#include "launcher/rendezvous/message.h"

namespace ddprun::launcher {

/// The signs of life of several workers, by this program's clock, as far as they are known. By default
/// nothing is known.
struct KnownSigns {
  using Time = std::chrono::steady_clock::time_point;

  Time latest;  ///< the last sign
  Time until;   ///< later signs may be on their way; max(): none will come
};

/// The beat that tells another program about them: it has another clock, so it gets ages.
inline Beat beat_with(const KnownSigns& signs, KnownSigns::Time now) {
  if (signs.until == KnownSigns::Time()) return {};
  const auto age = [now](KnownSigns::Time time) {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - time).count();
    return static_cast<int>(std::clamp<decltype(ms)>(ms, 0, INT_MAX));
  };
  return {age(signs.latest), age(signs.until)};
}

/// What a beat that has just arrived tells. A slow one makes signs look later than they were, which delays
/// the end of a hanging job; and they count as known for longer than they are by the time it was under way,
/// until the next beat comes.
inline KnownSigns signs_in(const Beat& beat, KnownSigns::Time now) {
  if (!beat.silent_ms || !beat.unknown_ms) return {};
  return {now - std::chrono::milliseconds(*beat.silent_ms),
          now - std::chrono::milliseconds(*beat.unknown_ms)};
}

/// A node's part: what it knows of its own workers and of the job's, and what it has told.
struct SharedSigns {
  KnownSigns own, job;
  KnownSigns::Time told_until;

  /// True if the others wait for these news: they can make workers count as hung, which takes the timeout.
  bool take_own(const KnownSigns& signs, std::chrono::milliseconds timeout) {
    own = signs;
    const auto silent_at = std::max(own.latest, job.latest) + timeout;
    return own.until >= silent_at && told_until < silent_at;
  }

  /// Another round begins: of its workers nothing is known.
  void begin_round() { own = {}; }

  Beat next_beat(KnownSigns::Time now) {
    told_until = std::min(own.until, now);
    return beat_with(own, now);
  }
};

}  // namespace ddprun::launcher
