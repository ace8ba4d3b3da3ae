#pragma once

#include <string>

#include <ddprun/common/files.h>
#include <ddprun/common/worker_env.h>

namespace ddprun {

/// A TCP port of this host, on all its addresses, reserved before the ranks that meet there start: PyTorch's
/// rank 0 listens on all of them.
///
/// Two sockets are bound to it with SO_REUSEADDR and do not listen. So bind(0) gives the port to nobody else,
/// yet rank 0 of any program can bind it and listen. There are two because duplicates of a descriptor share
/// its listening state: if the parent kept a copy of rank 0's socket, the kernel would keep accepting
/// connections after rank 0's death.
struct HeldPort {
  /// where   numeric address of the interface for `socket`; a name or another host's address (as behind NAT)
  ///         means all of them
  /// wanted  0: any free port
  /// throws  std::system_error
  explicit HeldPort(const std::string& where = "127.0.0.1", int wanted = 0);

  std::string address;  ///< as given
  int port = 0;
  UniqueFd socket;  ///< for rank 0 to inherit and listen on; close it here once rank 0 has it

 private:
  UniqueFd held_;
};

/// The environment, without store_fd, of one of `size` ranks on one node that rendezvous at the port.
WorkerEnv env_of_rank(const HeldPort& port, int rank, int size);

}  // namespace ddprun
