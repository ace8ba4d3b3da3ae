#pragma once

#include <string>

#include <ddprun/common/unique_fd.h>
#include <ddprun/common/worker_env.h>

namespace ddprun {

/// A TCP port of this host that is reserved before the ranks that meet there start.
///
/// Two sockets are bound to it with SO_REUSEADDR and do not listen. Bound, they keep the port from everyone's
/// bind(0); with SO_REUSEADDR and not listening, they let any program's rank 0 bind and listen on the same
/// port. There are two because duplicates of a descriptor share its listening state: if the parent kept a
/// copy of rank 0's socket, connections would still be accepted after rank 0's death and never answered.
struct HeldPort {
  /// where   numeric address of an interface; a name, or an address that is not this host's, as behind NAT,
  ///         means all interfaces
  /// wanted  0: any free port
  /// throws  std::system_error
  explicit HeldPort(const std::string& where = "127.0.0.1", int wanted = 0);

  std::string address;  ///< as given
  int port = 0;
  UniqueFd socket;  ///< for rank 0 to inherit and listen on; close it here once rank 0 has it

 private:
  UniqueFd held_;
};

/// The environment of one of `size` ranks of one node that meet at the port, without a store_fd.
WorkerEnv env_of_rank(const HeldPort& port, int rank, int size);

}  // namespace ddprun
