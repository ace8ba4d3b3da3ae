#pragma once

#include <stdexcept>
#include <string>

namespace ddprun::test {

/// What a simulation throws once the simulated has broken its word.
struct BrokenPromise : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void promise(bool kept, const std::string& what) {
  if (!kept) throw BrokenPromise(what);
}

}  // namespace ddprun::test
