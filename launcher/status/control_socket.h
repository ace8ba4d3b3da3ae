#pragma once

#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <string>

#include <ddprun/common/files.h>
#include "launcher/status/job_questions.h"

namespace ddprun::launcher {

/// A Unix socket at which this user, and nobody else, can ask about a running job: ddpctl does. Removed at
/// the end. A client that does not read its answers is dropped. Without a place for the socket the job goes
/// on.
class ControlSocket {
 public:
  /// name  of the job, for JOB.sock in control_folder()
  ControlSocket(boost::asio::io_context& io, const std::string& name, JobQuestions questions);
  ~ControlSocket();
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

 private:
  std::filesystem::path path_;  ///< empty: there is none
  UniqueFd in_use_;             ///< the folder, locked: systemd-tmpfiles leaves it alone
};

}  // namespace ddprun::launcher
