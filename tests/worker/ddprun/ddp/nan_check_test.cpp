#include <ddprun/ddp/checks.h>

#include <cmath>
#include <limits>

#include <torch/nn/modules/linear.h>

#include <ddprun/common/errors.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"

using namespace ddprun;
using ddp::DistributedDataParallel;
using ddp::NanCheck;
using ddp::ProcessGroup;

namespace {

std::string failure_of_check(NanCheck& check) {
  try {
    check.check();
    return "";
  } catch (const ddp::NonFiniteGradient& error) {
    return error.what();
  }
}

void expect(const std::string& got, const std::string& wanted) {
  ensure(got == wanted, ("expected '" + wanted + "', got '" + got + "'").c_str());
}

/// weight has 2 x 3 values; its gradient is the input, twice.
torch::Tensor input(double first) { return torch::tensor({{first, 1.0, 2.0}}, torch::kFloat32); }

}  // namespace

TEST_CASE("a NaN gradient is named with its parameter and rank, on every rank", "[nan_check]") {
  const int size = GENERATE(1, 2, 3);
  const bool check_first = GENERATE(false, true);  // made before DistributedDataParallel, or after
  test::run_ranks(size, [=](const ProcessGroup& group) {
    const int bad_rank = size - 1;
    torch::nn::Linear model(3, 2);
    std::optional<NanCheck> check;
    if (check_first) check.emplace(*model, group);
    DistributedDataParallel ddp(*model, group);
    if (!check_first) check.emplace(*model, group);
    const auto step = [&](double first) {
      ddp.forward([&] { return model->forward(input(group.rank() == bad_rank ? first : 0)).sum(); })
          .backward();
      return failure_of_check(*check);
    };
    for (int i = 0; i < 3; ++i) expect(step(0.5), "");
    const std::string where = "gradient of weight on rank " + std::to_string(bad_rank) + ": ";
    expect(step(NAN), where + "2 NaN and 0 infinite of 6 values");
    // The averaged gradient is NaN on every rank now; the next one's own are looked at, not these.
    expect(step(0.5), "");
    expect(step(INFINITY), where + "0 NaN and 2 infinite of 6 values");
    // A sum that overflows does not make a value infinite.
    expect(step(std::numeric_limits<float>::max()), "");
  });
}

TEST_CASE("each micro-batch of an accumulation is checked", "[nan_check]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    torch::nn::Linear model(3, 2);
    DistributedDataParallel ddp(*model, group);
    NanCheck check(*model, group);
    {
      const auto no_sync = ddp.no_sync();
      ddp.forward([&] { return model->forward(input(group.rank() == 1 ? NAN : 0)).sum(); }).backward();
    }
    ddp.forward([&] { return model->forward(input(0)).sum(); }).backward();
    expect(failure_of_check(check), "gradient of weight on rank 1: 2 NaN and 0 infinite of 6 values");
  });
}

TEST_CASE("several ranks with such gradients are all named", "[nan_check]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    torch::nn::Linear model(3, 2);
    NanCheck check(*model, group);
    auto out = model->forward(input(group.rank() == 0 ? NAN : 0)).sum();
    if (group.rank() == 1) out = out * INFINITY;
    out.backward();
    const auto message = failure_of_check(check);
    ensure(message.find(
               "gradient of weight on rank 0: 2 NaN and 0 infinite of 6 values; of weight on rank 1: ") == 0,
           message.c_str());
  });
}
