#include <ddprun/flight/flight_position.h>

#include <exception>
#include <sstream>

#include <ddprun/common/text/one_line.h>

namespace ddprun::ddp {

std::string to_text(const FlightPosition& position) {
  return std::to_string(position.answers) + " " + std::to_string(position.dumped) + "\n" +
         one_line(position.failure) + "\n" + to_json(position.flight);
}

std::optional<FlightPosition> parse_flight_position(const std::string& text) {
  std::istringstream stream(text);
  FlightPosition position;
  std::string line, rest;
  if (!(stream >> position.answers >> position.dumped) || !std::getline(stream, line) ||
      !std::getline(stream, position.failure))
    return std::nullopt;
  std::getline(stream, rest, '\0');
  try {
    position.flight = parse_flight_dump(rest);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return position;
}

}  // namespace ddprun::ddp
