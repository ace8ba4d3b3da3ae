#include "worker/config/determinism.h"

#include <ATen/Context.h>

#include <cstdlib>
#include <string>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>

namespace ddprun::worker {

void make_deterministic() {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
}

void check_precision(const Config& config, at::Device device) {
  const auto& ddp = config.train.parallel;
  if (config.train.precision.precision != train::Precision::k16Mixed || !device.is_cuda()) return;
  for (const auto& [given, flag] : {std::pair(ddp.nan_check, "--nan-check"), std::pair(ddp.join, "--join")})
    if (given)
      throw UsageError(std::string(flag) +
                       ": expected --precision=32 or --precision=bf16-mixed, got 16-mixed");
}

void settle_precision(Config& config, const ddp::ProcessGroup& group) {
  auto& precision = config.train.precision.precision;
  if (precision != train::Precision::k16Mixed || group.device().is_cuda()) return;
  precision = train::Precision::kBf16Mixed;
  if (group.rank() == 0) log_info("--precision=16-mixed: using bf16-mixed on a CPU");
}

}  // namespace ddprun::worker
