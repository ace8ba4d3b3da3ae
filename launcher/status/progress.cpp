#include "launcher/status/progress.h"

#include <algorithm>
#include <utility>

namespace ddprun::launcher {
namespace {

constexpr std::chrono::seconds kPointsApart{1};  // between the points of the window
constexpr std::size_t kWindowPoints = 11;

}  // namespace

void Progress::add(std::string_view bytes, Clock::time_point now) {
  while (!bytes.empty()) {
    const auto end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    const bool whole = end != std::string_view::npos;
    bytes.remove_prefix(whole ? end + 1 : bytes.size());
    if (!skipping_ && partial_.size() + part.size() >= kMaxStatusLine) {
      skipping_ = true;
      partial_.clear();
      ++garbage_;
    }
    if (!skipping_) partial_ += part;
    if (!whole) return;
    if (!std::exchange(skipping_, false)) take_line(partial_, now);
    partial_.clear();
  }
}

void Progress::take_line(std::string_view line, Clock::time_point now) {
  const auto status = parse_status(line, latest_);
  if (!status) {
    ++garbage_;
    return;
  }
  latest_ = *status;
  said_at_ = now;
  if (!latest_.step) return;
  if (!first_step_) first_step_ = latest_.step;
  if (!window_.empty() && *latest_.step < *window_.back().status.step) window_.clear();  // it started over
  const std::size_t size = window_.size();
  if (size >= 2 && window_[size - 1].at - window_[size - 2].at < kPointsApart) {
    window_.back() = {now, latest_};
    return;
  }
  window_.push_back({now, latest_});
  if (window_.size() > kWindowPoints) window_.pop_front();
}

std::optional<Pace> Progress::pace() const {
  if (window_.size() < 2) return std::nullopt;
  const Point &first = window_.front(), &last = window_.back();
  Pace pace;
  pace.steps = *last.status.step - *first.status.step;
  const double seconds = std::chrono::duration<double>(last.at - first.at).count();
  if (pace.steps <= 0 || seconds <= 0) return std::nullopt;
  const auto each = [&](std::optional<double> WorkerStatus::Seconds::*member) -> std::optional<double> {
    const auto &before = first.status.seconds.*member, &after = last.status.seconds.*member;
    if (!before || !after) return std::nullopt;
    return std::max(*after - *before, 0.0) / static_cast<double>(pace.steps);
  };
  pace.step_seconds = seconds / static_cast<double>(pace.steps);
  pace.data = each(&WorkerStatus::Seconds::data);
  pace.compute = each(&WorkerStatus::Seconds::compute);
  pace.communication = each(&WorkerStatus::Seconds::communication);
  if (first.status.samples && last.status.samples)
    pace.samples_per_second =
        std::max(static_cast<double>(*last.status.samples - *first.status.samples), 0.0) / seconds;
  return pace;
}

}  // namespace ddprun::launcher
