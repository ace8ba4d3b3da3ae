#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <ddprun/common/worker_env.h>

namespace ddprun::ddp {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// The store through which the ranks find each other, after check_store(). Waits only for its host.
///
/// init_method  "env://": the TCPStore at MASTER_ADDR and MASTER_PORT, which the launcher or else rank 0
///              hosts (on the launcher's socket, if there is one); "file:///PATH": a FileStore in that file,
///              which all ranks can write and no other job uses at the same time
/// number       how many groups of this process met there before: others may still use the store, or the file
/// timeout      to reach the host, and of each later look-up
/// throws       UsageError for another init_method; IoError if the file's folder is missing; c10::Error if
///              the host does not answer
StorePtr make_store(const WorkerEnv& env, const std::string& init_method, int number,
                    std::chrono::milliseconds timeout);

/// What this process's groups have left at the place where they meet, for the next one there.
struct MeetingPlace {
  int groups = 0;           ///< that have met there
  bool has_socket = true;   ///< DDPRUN_STORE_FD is not yet used
  StorePtr kept = nullptr;  ///< the store that this process hosts, once a group there was closed: another
                            ///< rank may be ahead and ask it for the next group
};

/// Lives as long as the process.
MeetingPlace& meeting_place(const WorkerEnv& env, const std::string& init_method);

/// Whether this rank hosts the store.
bool hosts_store(const WorkerEnv& env, const std::string& init_method);

/// For messages: "127.0.0.1:29500" or the file.
std::string describe_meeting_place(const WorkerEnv& env, const std::string& init_method);

/// Checks everything that needs no other rank, and keeps the launcher's socket from child processes. throws
/// UsageError like make_store(), or if DDPRUN_STORE_FD is not a socket of MASTER_PORT
void check_store(const WorkerEnv& env, const std::string& init_method);

/// Between two attempts, after a wait of that length: a quarter of it, at least a millisecond. So a short
/// wait ends soon after what it waits for, and a long one takes few attempts.
std::chrono::nanoseconds pause_after(std::chrono::nanoseconds waited, std::chrono::milliseconds at_most);

/// Waits until something listens at host:port, by connecting and disconnecting. Retries within milliseconds;
/// a TCPStore client that arrives before its host sleeps for half a second or more.
///
/// returns  false on timeout, once give_up() has returned true, or, without give_up, if the host has no
/// address
bool wait_for_port(const std::string& host, std::uint16_t port, std::chrono::milliseconds at_most,
                   const std::function<bool()>& give_up = {});

}  // namespace ddprun::ddp
