#pragma once

namespace ddprun::test {

/// Sends this many heartbeats to DDPRUN_HEARTBEAT_FD. Returns false if that is not a pipe.
bool send_beats(int count);

/// An endless loop.
[[noreturn]] void stub_worker_spin();

/// Starts a thread that waits in stub_worker_thread() forever, and waits until it runs.
void start_pausing_thread();

}  // namespace ddprun::test
