#pragma once

#include <chrono>
#include <string>
#include <thread>

namespace ddprun::ddp {

/// Logs a line if it lives longer than expected.
class LateNotice {
 public:
  LateNotice(std::chrono::milliseconds expected, std::string line);

 private:
  std::jthread thread_;
};

}  // namespace ddprun::ddp
