#include "launcher/status/status_board.h"

#include <utility>

namespace ddprun::launcher {
namespace {

constexpr std::chrono::seconds kStragglerLook{1};

}  // namespace

StatusBoard::StatusBoard(boost::asio::io_context& io, int first_rank, OtherTimes others,
                         std::function<void(const Straggler&)> on_straggler)
    : pipes_(io, [this](std::size_t index, std::string_view bytes) { take(index, bytes); }),
      first_rank_(first_rank),
      others_(std::move(others)),
      on_straggler_(std::move(on_straggler)) {}

UniqueFd StatusBoard::open(std::size_t index) {
  if (progress_.size() <= index) progress_.resize(index + 1);
  progress_[index] = {};
  return pipes_.open(index);
}

void StatusBoard::take(std::size_t index, std::string_view bytes) {
  progress_[index].add(bytes, Clock::now());
  look();
}

void StatusBoard::look() {
  const auto now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + kStragglerLook;
  auto others = others_();
  if (!others) return;
  std::vector<OwnTime> times = std::move(*others);
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    const auto pace = progress_[i].pace();
    if (!pace || !pace->compute || pace->steps < kLeastSteps) continue;
    times.push_back({first_rank_ + static_cast<int>(i), *progress_[i].latest().step, *pace->compute,
                     pace->data.value_or(0)});
  }
  for (const Straggler& straggler : watch_.look(times)) on_straggler_(straggler);
}

}  // namespace ddprun::launcher
