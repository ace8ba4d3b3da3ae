#include "worker/commands/advice.h"

#include <algorithm>

#include <ddprun/common/text.h>

namespace ddprun::worker {
namespace {

constexpr double kLongWait = 0.05, kLongExchange = 0.2;  // of the training time
constexpr double kManySamples = 0.01;                    // of an epoch

std::string number(std::int64_t value) { return std::to_string(value); }

/// "2 ranks"
std::string counted(std::int64_t count, const std::string& what) {
  return number(count) + " " + what + (count == 1 ? "" : "s");
}

/// The largest batch size of at least half the present one that leaves no rest.
std::optional<std::int64_t> dividing(std::int64_t samples, std::int64_t batch_size) {
  for (std::int64_t size = batch_size; 2 * size >= batch_size && size > 1; --size)
    if (samples % size == 0) return size;
  return std::nullopt;
}

}  // namespace

std::string loader_advice(const RunFacts& run) {
  if (run.data_share.value_or(0) < kLongWait) return "";
  return formatted("%.0f %% of the training time was spent waiting for batches: --loader-threads %d (now %d)",
                   100 * *run.data_share, std::max(2, 2 * run.loader_threads), run.loader_threads);
}

std::string communication_advice(const RunFacts& run) {
  if (run.communication_share.value_or(0) < kLongExchange) return "";
  std::vector<std::string> ways;
  if (!run.join)
    ways.push_back("--accumulate " + number(2 * run.accumulate) + " exchanges them half as often");
  if (run.can_compress) ways.emplace_back("--comm-hook bf16 sends half as many bytes");
  if (ways.empty()) return "";
  return formatted("%.0f %% of the training time was spent waiting for other ranks' gradients: ",
                   100 * *run.communication_share) +
         joined(ways, ", ");
}

std::string batch_advice(const RunFacts& run) {
  if (!run.training_samples || run.join) return "";
  const auto samples = *run.training_samples, ranks = std::int64_t{run.ranks};
  const auto per_rank = run.drop_last ? samples / ranks : (samples + ranks - 1) / ranks;
  const auto rest = per_rank % run.batch_size;
  const auto noticeable = static_cast<std::int64_t>(kManySamples * static_cast<double>(samples));
  const auto size = dividing(per_rank, run.batch_size);
  const auto better = size ? "--batch-size " + number(*size) + " leaves none over" : "";
  if (run.drop_last) {
    const auto dropped = samples - ranks * (per_rank - rest);
    if (dropped <= noticeable) return "";
    return counted(dropped, "sample") + " of " + number(samples) + " are dropped in each epoch: " +
           (size && size != run.batch_size ? better : "train without --drop-last");
  }
  const auto padded = ranks * per_rank - samples;
  if (padded > noticeable && run.can_join)
    return counted(padded, "sample") + " of " + number(samples) +
           " are used twice in each epoch, so that all ranks have the same number: --join uses each once";
  if (rest == 0 || 2 * rest >= run.batch_size) return "";
  return "each epoch's last batch has " + number(rest) + " of " + counted(run.batch_size, "sample") +
         ", but counts as much as a whole one: " + (size ? better : "--drop-last leaves it out");
}

std::string learning_rate_advice(const RunFacts& run) {
  if (run.ranks == 1 || run.scales_lr || !run.lr_is_default) return "";
  return formatted("the learning rate %g is meant for a single rank, but ", run.lr) +
         counted(run.ranks, "rank") + " take batches of " +
         number(run.batch_size * run.ranks * run.accumulate) +
         " samples: --scale-lr linear with --warmup-steps, or an --lr of your own";
}

std::string core_advice(const RunFacts& run) {
  if (run.on_gpu || run.ranks_on_host == 0 || run.cpus == 0) return "";
  const int used = run.ranks_on_host * run.threads_per_rank;
  const auto share = "OMP_NUM_THREADS=" + number(std::max(1, run.cpus / run.ranks_on_host));
  const auto have = counted(run.ranks_on_host, "rank") + " x " + counted(run.threads_per_rank, "thread");
  if (used > run.cpus) return have + " share " + counted(run.cpus, "core") + ": " + share;
  if (4 * used > 3 * run.cpus) return "";
  return have + " use " + number(used) + " of " + counted(run.cpus, "core") +
         ": ddprun --nproc-per-node=" + number(run.cpus / run.threads_per_rank) + ", or " + share;
}

std::string precision_advice(const RunFacts& run) {
  if (run.precision == train::Precision::k32 && (run.on_gpu || run.cpu_has_bf16))
    return std::string("trained in 32 bits, and the ") + (run.on_gpu ? "GPU" : "CPU") +
           " can compute in 16: --precision bf16-mixed" + (run.on_gpu && !run.fast ? ", and --fast" : "");
  return run.on_gpu && !run.fast ? "each kernel of a step was launched separately: --fast" : "";
}

std::string unused_parameters_advice(const RunFacts& run) {
  if (!run.find_unused) return "";
  return "each step looks for unused parameters: leave out --find-unused if there are none, or use "
         "--static-graph if they are always the same";
}

std::vector<std::string> advice(const RunFacts& run) {
  std::vector<std::string> lines;
  for (const auto about : {loader_advice, communication_advice, batch_advice, learning_rate_advice,
                           core_advice, precision_advice, unused_parameters_advice})
    if (auto line = about(run); !line.empty()) lines.push_back(std::move(line));
  return lines;
}

}  // namespace ddprun::worker
