#include <ddprun/train/loop/run_status.h>

#include <algorithm>
#include <filesystem>

#include <ddprun/sharding/fully_sharded.h>
#include <ddprun/train/record/rank_resources.h>

namespace ddprun::train {
namespace {

constexpr std::chrono::milliseconds kTellEvery{100};

}  // namespace

RunStatus::RunStatus(const Run& run, const ParallelModel& model, const RunEvaluation& evaluation,
                     const CheckpointSaver& saver)
    : run_(run), model_(model), evaluation_(evaluation), saver_(saver), spent_(run.in_memory.spent) {
  if (run.on_rank_0() && run.options.report)
    told_.report = std::filesystem::absolute(run.options.out / "report.html").string();
}

RunStatus::Batch::Batch(RunStatus& owner, std::int64_t samples)
    : owner_(owner),
      seconds_(owner.spent_.compute),
      waited_(ddp::FullyShardedDataParallel::seconds_waited()) {
  owner.samples_ += samples;
  if (owner.spent_.start == 0) owner.spent_.start = process_seconds();
}

RunStatus::Batch::~Batch() {
  const double waited = ddp::FullyShardedDataParallel::seconds_waited() - waited_;
  owner_.spent_.communication += waited;
  owner_.spent_.compute -= waited;
}

Ledger RunStatus::spent() const {
  Ledger all = spent_;
  const auto ddp = model_.statistics();
  const auto exposed = std::max<std::int64_t>(ddp.communication_ns - ddp.overlap_ns, 0);
  const double waited = std::min(static_cast<double>(exposed * ddp.iteration) / 1e9, all.compute);
  all.communication += waited;
  all.compute -= waited;
  all.evaluation += evaluation_.seconds();
  all.checkpoint += saver_.stall_seconds();
  all.total = process_seconds();
  return all;
}

void RunStatus::report(const char* phase, const TrainState& at) {
  if (!run_.options.status.connected()) return;
  told_.phase = phase;
  told_.step = at.step;
  if (!run_.options.parallel.join) told_.steps = run_.length().steps();
  told_.epoch = at.epoch;
  told_.epochs = run_.options.epochs;
  told_.samples = samples_;
  const auto now = spent();
  told_.seconds = {now.data, now.compute, now.communication, now.evaluation, now.checkpoint, now.start};
  if (const auto memory = gpu_memory(run_.group.device()))
    told_.memory.device = static_cast<std::int64_t>(memory->allocated * (1 << 20));
  run_.options.status.send(told_);
  next_ = Clock::now() + kTellEvery;
}

}  // namespace ddprun::train
