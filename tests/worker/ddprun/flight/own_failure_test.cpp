// Errors of a rank's own while its collectives are under way.
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/flight/flight_recorder.h>
#include <ddprun/flight/record_collectives.h>
#include <ddprun/run/run_worker.h>
#include "tests/support/catch.h"

using namespace ddprun;

namespace {

/// One of two ranks' NCCL: its works have no future that tells, and fail as they are told to.
class LikeNccl : public c10d::Backend {
 public:
  LikeNccl() : Backend(/*rank=*/0, /*size=*/2) {}
  const std::string getBackendName() const override { return "nccl"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    if (at_start) std::rethrow_exception(at_start);
    return c10::make_intrusive<LikeWork>(*this);
  }
  std::exception_ptr at_start, at_wait;
  bool completed = false;

 private:
  struct LikeWork : c10d::Work {
    explicit LikeWork(LikeNccl& its_backend) : backend(its_backend) {}
    bool isCompleted() override { return backend.completed; }
    bool wait(std::chrono::milliseconds) override {
      if (backend.at_wait) std::rethrow_exception(backend.at_wait);
      return true;
    }
    LikeNccl& backend;
  };
};

template <typename Error>
std::exception_ptr error_of(Error raise) {
  try {
    raise();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

TEST_CASE("over NCCL, what a rank fails of by itself stays what it is, with its exit code", "[flight]") {
  const auto nccl = c10::make_intrusive<LikeNccl>();
  const auto backend = ddp::record_collectives(nccl, c10::make_intrusive<c10d::HashStore>());
  std::vector<at::Tensor> tensors = {torch::ones({9})};
  const auto run = [&](std::exception_ptr at_start, std::exception_ptr at_wait) {
    nccl->at_start = std::move(at_start), nccl->at_wait = std::move(at_wait);
    return describe_failure(error_of([&] { backend->allreduce(tensors, {})->wait(); }));
  };
  const auto newest = [] { return ddp::flight_recorder().records(1).at(0); };
  struct Own {
    std::exception_ptr error;
    std::string message;
    int exit_code;
  };
  const std::vector<Own> own = {
      {error_of([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried 2 GiB"); }),
       "CUDA out of memory. Tried 2 GiB", 1},
      {std::make_exception_ptr(IoError("/data", "is cut")), "/data: is cut", 1},
      {std::make_exception_ptr(UsageError("--lr: expected")), "--lr: expected", 2}};
  for (const auto& [error, message, exit_code] : own) {
    CAPTURE(message);
    const auto work = backend->allreduce(tensors, {});
    REQUIRE(newest().pending());
    for (const auto& failure :
         {describe_failure(ddp::explained_failure(error)), run(error, {}), run({}, error)}) {
      CHECK(failure.message == message);
      CHECK(failure.exit_code == exit_code);
    }
    CHECK(newest().state == ddp::CollectiveState::kFailed);
    nccl->at_wait = nullptr;
  }

  const auto work = backend->allreduce(tensors, {});
  nccl->completed = true;
  ddp::poll_recordings();
  CHECK(newest().state == ddp::CollectiveState::kCompleted);
  nccl->completed = false;
  CHECK_THAT(run({}, error_of([] { C10_THROW_ERROR(DistBackendError, "NCCL error"); })).message,
             test::ContainsSubstring("rank 1 has ended or does not answer [NCCL error]"));
  backend->shutdown();
}
