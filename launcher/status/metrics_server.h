#pragma once

#include <boost/asio/io_context.hpp>

#include "launcher/rendezvous/endpoint.h"
#include "launcher/status/job_questions.h"

namespace ddprun::launcher {

/// --metrics-port: answers GET /metrics (Prometheus), /report (a worker's page), /status (JSON) and
/// /healthz at an address.
///
/// token   asked for as "Authorization: Bearer TOKEN"; empty: nobody is asked
/// An address that cannot be used is a warning: the job goes on.
void serve_metrics(boost::asio::io_context& io, const Endpoint& endpoint, const std::string& token,
                   JobQuestions questions);

}  // namespace ddprun::launcher
