#include "tests/support/stub_hang.h"

#include <unistd.h>

#include <future>
#include <thread>
#include <utility>

#include <ddprun/common/status.h>
#include <ddprun/common/worker_env.h>

namespace ddprun::test {

bool send_beats(int count) {
  const Heartbeat heartbeat(std::stoi(process_env("DDPRUN_HEARTBEAT_FD").value_or("-1")));
  for (int i = 0; i < count; ++i) heartbeat.beat();
  return heartbeat.connected();
}

// Tests look for these two names in stacks.

[[gnu::noinline]] void stub_worker_spin() {
  for (;;) asm volatile("");
}

[[gnu::noinline]] static void stub_worker_thread(std::promise<void> started) {
  started.set_value();
  for (;;) ::pause();
}

void start_pausing_thread() {
  std::promise<void> started;
  const auto is_there = started.get_future();
  std::thread(stub_worker_thread, std::move(started)).detach();
  is_there.wait();
}

}  // namespace ddprun::test
