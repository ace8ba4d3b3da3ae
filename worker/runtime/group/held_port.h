#pragma once

#include <string>

#include <ddprun/common/unique_fd.h>
#include <ddprun/common/worker_env.h>

namespace ddprun::ddp {

/// A free port of an address of this host, bound and held so that nobody's bind(0) can take it. Whoever
/// inherits or duplicates the socket may listen on it.
///
/// address  as a number, IPv4 or IPv6
/// throws   std::system_error if it cannot be bound
struct HeldPort {
  explicit HeldPort(const std::string& address = "127.0.0.1");
  std::string address;
  UniqueFd socket;
  int port = 0;
};

/// The environment of one of `size` ranks of one node that meet at the port, without a store_fd.
WorkerEnv env_of_rank(const HeldPort& port, int rank, int size);

}  // namespace ddprun::ddp
