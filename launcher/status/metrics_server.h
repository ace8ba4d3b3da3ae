#pragma once

#include <boost/asio/io_context.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>

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

/// A view of a job (JobQuestions::view) in Prometheus's text format.
std::string metrics_text(const nlohmann::ordered_json& view);

}  // namespace ddprun::launcher
