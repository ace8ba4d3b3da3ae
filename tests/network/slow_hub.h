#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include <ddprun/common/files.h>

namespace ddprun::test {

/// What a bad network does to each frame.
struct Impairment {
  std::chrono::milliseconds delay{0};  ///< one way
  double loss = 0;                     ///< of so many frames, 0 to 1
};

/// A hub that passes each Ethernet frame on to all other ports, late or not at all: the kernel's own means
/// for that (netem) are missing in many. Its own process, which ends with this object or with the test.
class SlowHub {
 public:
  /// A network interface (TAP) of that name in the calling thread's network namespace, and its port of a hub.
  /// Skips the test case where that cannot be made.
  static UniqueFd make_port(const std::string& interface);

  SlowHub(std::vector<UniqueFd> ports, const Impairment& impairment);
  ~SlowHub();
  SlowHub(const SlowHub&) = delete;
  SlowHub& operator=(const SlowHub&) = delete;

 private:
  std::vector<UniqueFd> ports_;  ///< held here too: an interface goes with its last descriptor
  pid_t pid_ = -1;
};

}  // namespace ddprun::test
