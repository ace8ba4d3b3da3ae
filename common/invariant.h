#pragma once

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace ddprun {

/// Ends the process at once if what must be true here is not: after such a bug its state cannot be trusted,
/// and going on could lose the user's data. Cheap enough for every build. For bad input see errors.h.
///
/// what  must be true: "a round has members"
inline void check_invariant(bool holds, const char* what) {
  if (holds) [[likely]]
    return;
  std::fprintf(stderr, "%s: error: a bug in %s: it must be true that %s, but it is not\n",
               ::program_invocation_short_name, ::program_invocation_short_name, what);
  std::abort();
}

}  // namespace ddprun
