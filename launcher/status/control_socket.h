#pragma once

#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <string>

#include <ddprun/common/files.h>
#include "launcher/status/job_questions.h"

namespace ddprun::launcher {

/// A Unix socket where this user, and nobody else, can query a running job, as ddpctl does. Removed at the
/// end. Drops a client that does not read its answers. If there is no place for the socket, the job
/// continues.
class ControlSocket {
 public:
  /// name  of the job, for JOB.sock in control_folder()
  ControlSocket(boost::asio::io_context& io, const std::string& name, JobQuestions questions);
  ~ControlSocket();
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

 private:
  std::filesystem::path path_;  ///< empty: no socket
  UniqueFd in_use_;             ///< the folder, locked so that systemd-tmpfiles leaves it alone
};

/// Removes the socket of a job whose ddprun was killed.
void remove_control_socket(const std::string& name);

}  // namespace ddprun::launcher
