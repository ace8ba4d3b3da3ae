#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include <ddprun/common/worker_env.h>

namespace c10d {
class Store;
}

namespace ddprun::ddp {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// The store through which the ranks find each other. Waits for nobody but its host.
///
/// init_method  "env://": the TCPStore at MASTER_ADDR and MASTER_PORT, which rank 0 hosts (on the launcher's
///              socket, if there is one) unless the launcher does; "file:///PATH": a FileStore in that file,
///              which all ranks can write and which no other job uses at the same time
/// timeout      for its host to be there, and of each later look-up
/// throws       UsageError for another init_method; IoError if the file's folder is not there; c10::Error if
///              the host does not answer
StorePtr make_store(const WorkerEnv& env, const std::string& init_method, std::chrono::milliseconds timeout);

/// The store of a world of one: a map in this process.
StorePtr make_own_store();

/// What init_method leads to, for messages: "127.0.0.1:29500" or the file.
std::string describe_meeting_place(const WorkerEnv& env, const std::string& init_method);

/// Checks the parts of env and init_method that need no other rank, and keeps the launcher's socket from our
/// own children. throws UsageError as make_store(), or if DDPRUN_STORE_FD is not a socket of MASTER_PORT
void check_store(const WorkerEnv& env, const std::string& init_method);

/// Waits until somebody listens at host:port, by connecting and hanging up. A TCPStore client that comes
/// before its host sleeps for half a second or more before it tries again; this looks again within
/// milliseconds.
///
/// returns  true once somebody listens; false when the time is over or the host has no such address
bool wait_for_port(const std::string& host, std::uint16_t port, std::chrono::milliseconds at_most);

}  // namespace ddprun::ddp
