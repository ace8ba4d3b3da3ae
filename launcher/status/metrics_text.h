#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ddprun::launcher {

/// A view of a job (JobQuestions::view) in Prometheus's text format.
std::string metrics_text(const nlohmann::ordered_json& view);

}  // namespace ddprun::launcher
