#pragma once

#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include <ddprun/common/files.h>
#include "launcher/job/job_monitor.h"
#include "launcher/rendezvous/endpoint.h"

namespace ddprun::launcher {

/// Where this user's jobs have their sockets, JOB.sock: $DDPRUN_CONTROL_DIR, else /tmp/ddprun-UID. Not in
/// $XDG_RUNTIME_DIR, which is emptied when the user logs out.
std::filesystem::path control_folder();

/// Whether this is a folder of this user that nobody else can enter.
bool is_private_folder(const std::filesystem::path& folder);

/// A Unix socket where this user, and nobody else, can query a running job, as ddpctl does. Removed at the
/// end. Drops a client that does not read its answers. If there is no place for the socket, the job
/// continues. A request is one line of JSON: {"ask": "status" | "output" | "stacks" | "drain" | "stop",
/// "rank": N, "seen": N, "node": "NODE"}; one that cannot be answered gets {"error": "..."}.
class ControlSocket {
 public:
  /// name  of the job, for JOB.sock in control_folder()
  ControlSocket(boost::asio::io_context& io, const std::string& name, JobMonitor& monitor);
  ~ControlSocket();
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

 private:
  std::filesystem::path path_;  ///< empty: no socket
  UniqueFd in_use_;             ///< the folder, locked so that systemd-tmpfiles leaves it alone
};

/// Whether a file of control_folder() has the name of a job's socket.
bool is_job_socket(const std::filesystem::path& path);
/// Removes a socket that a job made in control_folder() if its ddprun was killed: nobody listens there.
void remove_if_dead(const std::filesystem::path& socket);
/// All of them. What cannot be looked at stays.
void remove_dead_sockets();

/// --metrics-port: answers GET /metrics (Prometheus), /report (a worker's page), /status (JSON) and /healthz
/// at an address. An unusable address is only a warning.
///
/// token   required as "Authorization: Bearer TOKEN"; empty: not required
void serve_metrics(boost::asio::io_context& io, const Endpoint& endpoint, const std::string& token,
                   JobMonitor& monitor);

/// Whether a request's Host header names this host: an address, localhost or own_name, with or without a
/// port, or nothing at all. A page in a browser whose own name leads to 127.0.0.1 (DNS rebinding) sends that
/// name.
///
/// own_name  as host_name() gives it; its part before the first dot counts, too
bool names_this_host(std::string_view host, const std::string& own_name);

/// A view of a job (JobMonitor::view) in Prometheus's text format.
std::string metrics_text(const nlohmann::ordered_json& view);

/// Answers "200 OK" to every connection to this TCP port of the host, as long as the loop runs. A stopped or
/// stuck ddprun does not answer.
///
/// port  the text of TORCHELASTIC_HEALTH_CHECK_PORT; an unusable one causes a warning, as in torchrun
void answer_health_checks(boost::asio::io_context& io, const std::string& port);

}  // namespace ddprun::launcher
