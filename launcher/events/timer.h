#pragma once

#include <boost/asio/basic_waitable_timer.hpp>

#include "launcher/events/clock.h"

namespace ddprun::launcher {

using Timer = boost::asio::basic_waitable_timer<LoopClock>;
using WallTimer = boost::asio::basic_waitable_timer<WallClock>;

}  // namespace ddprun::launcher
