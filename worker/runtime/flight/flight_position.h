#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ddprun/flight/flight_dump.h>

namespace ddprun::ddp {

/// A rank's position, as it lies on the board: the number of the last question that it answers, of the last
/// for which it has written its ring, how it failed if it did, and the newest of its ring.
struct FlightPosition {
  std::int64_t answers = 0, dumped = 0;
  std::string failure;
  FlightDump flight;
};

std::string to_text(const FlightPosition& position);

/// nullopt for a text that is no position
std::optional<FlightPosition> parse_flight_position(const std::string& text);

}  // namespace ddprun::ddp
