#pragma once

#include <boost/asio/io_context.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "launcher/rendezvous/endpoint.h"
#include "launcher/status/job_questions.h"

namespace ddprun::launcher {

/// --metrics-port: answers GET /metrics (Prometheus), /report (a worker's page), /status (JSON) and /healthz
/// at an address.
///
/// token   required as "Authorization: Bearer TOKEN"; empty: not required An unusable address is only a
///         warning.
void serve_metrics(boost::asio::io_context& io, const Endpoint& endpoint, const std::string& token,
                   JobQuestions questions);

/// Whether a request's Host header names this host: an address, localhost or own_name, with or without a
/// port, or nothing at all. A page in a browser whose own name leads to 127.0.0.1 (DNS rebinding) sends that
/// name.
///
/// own_name  as host_name() gives it; its part before the first dot counts, too
bool names_this_host(std::string_view host, const std::string& own_name);

/// A view of a job (JobQuestions::view) in Prometheus's text format.
std::string metrics_text(const nlohmann::ordered_json& view);

}  // namespace ddprun::launcher
