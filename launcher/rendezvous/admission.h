#pragma once

#include <string>

#include "launcher/rendezvous/coordinator.h"
#include "launcher/rendezvous/message.h"

namespace ddprun::launcher {

/// Why the node cannot take part whoever else does, naming both sides; empty if it can.
///
/// address   where its connection comes from; empty: from the coordinator's own host
std::string disagreement(const CoordinatorSettings& settings, const Join& join, const std::string& address);

}  // namespace ddprun::launcher
