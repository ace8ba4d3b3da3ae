#include <ddprun/train/loop/step_memory.h>

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <torch/nn/module.h>

#include <ddprun/group/collectives.h>

namespace ddprun::train {
namespace {

/// Pauses last this many times as long as a copy. In the background, pickling and writing take about three
/// times as long as it.
constexpr int kPause = 400;

}  // namespace

void CopyPause::copied(Clock::time_point begin, Clock::time_point end) {
  const auto last = std::exchange(took_, end - begin);
  next_ = end + kPause * std::min(last, took_);
}

StepMemory::StepMemory(const Run& run, CheckpointSaver& saver, Totals& totals, const RunRecord* record,
                       std::function<SoFar()> so_far)
    : run_(run),
      saver_(saver),
      totals_(totals),
      record_(record),
      so_far_(std::move(so_far)),
      memory_(run.options.memory) {}

void StepMemory::commit(const TrainState& at, const Position& position, Evaluating evaluating) {
  if (memory_ == nullptr) return;
  memory_->state.reset();  // it is in use
  if (!committed_) committed_.emplace();
  committed_->at = at;
  committed_->position = position;
  committed_->at.evaluating = evaluating;
  if (run_.options.accumulate > 1) committed_->totals = totals_.sums();
  if (evaluating == Evaluating::kWithinEpoch || committed_->buffers.empty()) commit_buffers();
}

/// Only the training's forward passes change them.
void StepMemory::commit_buffers() {
  const torch::NoGradGuard no_grad;
  const auto buffers = run_.task.module->buffers();
  if (committed_->buffers.empty())
    for (const auto& buffer : buffers) committed_->buffers.push_back(buffer.clone());
  else
    at::_foreach_copy_(committed_->buffers, buffers);
}

bool StepMemory::can_snapshot() const {
  return has_parts() && run_.options.checkpoint.memory_every_steps == 0 &&
         Clock::now() >= copy_pause_.next() && memory_->ready();
}

void StepMemory::snapshot_if_due(BatchLosses& losses) {
  if (memory_ == nullptr || !memory_->file) return;
  const auto every = run_.options.checkpoint.memory_every_steps;
  const auto step = committed_->at.step;
  const bool by_time = every == 0;
  if (!by_time && step % every != 0) return;
  if (has_parts()) {
    if (by_time && std::exchange(agreed_, false)) snapshot_part(losses);
    if (!by_time && std::exchange(kept_step_, step) != step) snapshot_part_now(losses);
    return;
  }
  const auto begin = Clock::now();
  if (by_time && (begin < copy_pause_.next() || !memory_->file->idle())) return;
  memory_->snapshot(saver_.state_alone(committed_->at, committed_->position, so_far_()));
  copy_pause_.copied(begin, Clock::now());
}

void StepMemory::snapshot_part_now(BatchLosses& losses) {
  memory_->wait();
  ddp::all_reduce_max(run_.group, {0});
  snapshot_part(losses);
}

void StepMemory::snapshot_part(BatchLosses& losses) {
  const auto begin = Clock::now();
  memory_->snapshot_part(
      saver_.state_alone(committed_->at, committed_->position, so_far_(), EpochSums{totals_, losses}),
      run_.group);
  copy_pause_.copied(begin, Clock::now());
}

void StepMemory::remember(const Ledger& spent) {
  memory_->spent = spent;
  // Not yet in use, in the file, or none so far.
  if (memory_->state || memory_->parts || !committed_) return;
  const torch::NoGradGuard no_grad;
  const auto buffers = run_.task.module->buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(committed_->buffers[i]);
  memory_->state = saver_.state_alone(committed_->at, committed_->position, so_far_());
  constexpr int kProgress[] = {1, 0, 2};  // by Evaluating: within the epoch comes before nothing
  memory_->progress = kProgress[static_cast<int>(committed_->at.evaluating)];
  memory_->totals = run_.options.accumulate > 1 ? committed_->totals : totals_.sums();
  if (record_ != nullptr) memory_->rows = record_->rows();
}

}  // namespace ddprun::train
