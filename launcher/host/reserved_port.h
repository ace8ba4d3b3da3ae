#pragma once

#include <optional>
#include <string>

#include <ddprun/common/unique_fd.h>

namespace ddprun::launcher {

/// A TCP port that is the job's from before its workers start.
///
/// Two sockets are bound to it with SO_REUSEADDR and do not listen. Bound, they keep the port from everyone's
/// bind(0); with SO_REUSEADDR and not listening, they let any program's rank 0 bind and listen on the same
/// port by itself. There are two because a duplicate of a descriptor shares its listening state: had ddprun
/// kept a copy of rank 0's socket, connections would still be taken after rank 0's death and never answered.
class ReservedPort {
 public:
  /// Takes the port asked for, or a free one.
  ///
  /// where   numeric address of an interface; a name, or an address that is not this host's own, as behind a
  ///         translation of addresses, stands for all interfaces
  /// throws  LaunchError naming the port if it is taken
  ReservedPort(const std::string& where, std::optional<int> wanted);

  int number() const { return number_; }

  /// The socket for rank 0 to inherit and listen on; close it here once rank 0 has it.
  int store_fd() const { return for_rank0_.get(); }
  void close_store_fd() { for_rank0_.reset(); }

 private:
  UniqueFd held_;
  int number_ = 0;
  UniqueFd for_rank0_;
};

}  // namespace ddprun::launcher
