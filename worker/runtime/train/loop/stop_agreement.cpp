#include <ddprun/train/loop/stop_agreement.h>

#include <algorithm>

#include <ddprun/group/collectives.h>

namespace ddprun::train {
namespace {

constexpr double kSecondsBetween = 0.5;
constexpr double kMostSteps = 1000;

}  // namespace

StopAgreement::StopAgreement(const ddp::ProcessGroup& group, double max_seconds)
    : group_(group), max_seconds_(max_seconds) {}

Requests StopAgreement::after_step() {
  ++steps_;
  note_progress();
  return group_.size() == 1 || steps_ >= next_ ? now() : Requests{};
}

Requests StopAgreement::now() {
  const auto time = Clock::now();
  const auto seconds = [&](Clock::time_point since) {
    return std::chrono::duration<double>(time - since).count();
  };
  const double step = seconds(last_) / static_cast<double>(std::max<std::int64_t>(steps_, 1));
  const bool late = max_seconds_ > 0 && seconds(begin_) >= max_seconds_;
  const auto agreed = ddp::all_reduce_max(
      group_, {signals_.terminate() ? 1.0 : 0.0, signals_.take_save() ? 1.0 : 0.0, late ? 1.0 : 0.0, step});
  last_ = time;
  steps_ = 0;
  next_ = static_cast<std::int64_t>(std::clamp(kSecondsBetween / std::max(agreed[3], 1e-6), 1.0, kMostSteps));
  if (agreed[0] > 0) signals_.take_over();
  return {agreed[0] > 0, agreed[1] > 0, agreed[2] > 0};
}

void StopAgreement::end(const std::function<void()>& save) {
  signals_.take_over();
  save();
  signals_.let_go();
}

}  // namespace ddprun::train
