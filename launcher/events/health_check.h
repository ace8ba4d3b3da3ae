#pragma once

#include <boost/asio/io_context.hpp>
#include <string>

namespace ddprun::launcher {

/// Answers "200 OK" to every connection to this TCP port of the host, as long as the loop runs. A stopped or
/// stuck ddprun does not answer.
///
/// port  the text of TORCHELASTIC_HEALTH_CHECK_PORT; an unusable one causes a warning, as in torchrun
void answer_health_checks(boost::asio::io_context& io, const std::string& port);

}  // namespace ddprun::launcher
