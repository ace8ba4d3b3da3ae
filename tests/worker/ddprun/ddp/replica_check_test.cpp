#include <ddprun/ddp/checks.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/types.h>

#include <ddprun/common/errors.h>
#include <ddprun/group/spawn.h>
#include "tests/support/catch.h"
#include "tests/support/fake_gpus.h"
#include "tests/support/run_ranks.h"

using namespace ddprun;
using ddp::ProcessGroup;
using ddp::ReplicasDiffer;
using test::ContainsSubstring;

namespace {

void flip(const at::Tensor& tensor, std::int64_t byte, int bit) {
  static_cast<std::uint8_t*>(tensor.mutable_data_ptr())[byte] ^= static_cast<std::uint8_t>(1 << bit);
}

/// What a rank with other numbers than the rest throws, and "ended" where another one did. As in a program, a
/// rank that throws ends its group.
std::string outcome_of(const WorkerEnv& env, const std::vector<int>& flipped) {
  auto group = ProcessGroup::connect(env, {.timeout = std::chrono::seconds(60)});
  std::vector<at::Tensor> tensors = {torch::arange(1000) / 7.0, torch::ones({3})};
  ddp::check_replicas(group, tensors, 100);
  for (const int rank : flipped)
    if (rank == env.rank) flip(tensors[0], 2001, 3 + rank);
  try {
    ddp::check_replicas(group, tensors, 200);
  } catch (const ReplicasDiffer& error) {
    ensure(error.ranks == flipped || error.ranks == std::vector<int>{0, 1}, "the same ranks");
    return error.what();
  } catch (const std::exception&) {
    return "ended";
  }
  group.close();
  return "equal";
}

}  // namespace

TEST_CASE("every flipped bit changes the checksum, of any type and wherever the tensor lies",
          "[replica_check]") {
  const auto memory = torch::arange(64).to(torch::kByte);
  for (const auto& tensor : {torch::randn({5}), torch::randn({3, 4}).t(), torch::randn({7}, torch::kHalf),
                             torch::ones({3}, torch::kBool), torch::full({}, 2.0), memory.narrow(0, 3, 21),
                             torch::randn({2, 2}, torch::kComplexDouble)}) {
    const auto before = ddp::checksum({torch::ones({2}), tensor});
    for (std::int64_t byte = 0; byte < static_cast<std::int64_t>(tensor.nbytes()); ++byte)
      for (int bit = 0; bit < 8; ++bit) {
        flip(tensor, byte, bit);
        CHECK(ddp::checksum({torch::ones({2}), tensor}) != before);
        flip(tensor, byte, bit);
      }
    CHECK(ddp::checksum({torch::ones({2}), tensor}) == before);
  }
  CHECK(ddp::checksum({torch::ones({1}), torch::zeros({1})}) !=
        ddp::checksum({torch::zeros({1}), torch::ones({1})}));
  const auto sparse = torch::arange(6.).view({2, 3}).narrow(1, 0, 2);  // with gaps
  CHECK(ddp::checksum({sparse}) == ddp::checksum({sparse.contiguous()}));
  CHECK(ddp::checksum({at::Tensor(), torch::empty({0})}) == ddp::checksum({}));
}

TEST_CASE("the odd ones out are those that differ from the most, or all", "[replica_check]") {
  const std::vector<int> none;
  CHECK(ddp::odd_ones_out({"a"}) == none);
  CHECK(ddp::odd_ones_out({"a", "a", "a"}) == none);
  CHECK(ddp::odd_ones_out({"a", "b", "a"}) == std::vector<int>{1});
  CHECK(ddp::odd_ones_out({"b", "a", "c", "a"}) == std::vector<int>{0, 2});
  CHECK(ddp::odd_ones_out({"a", "b"}) == std::vector<int>{0, 1});
  CHECK(ddp::odd_ones_out({"a", "b", "b", "a"}) == std::vector<int>{0, 1, 2, 3});
}

TEST_CASE("a rank with a flipped bit is named with its host, and the others see it end", "[replica_check]") {
  spawn(3, [](const WorkerEnv& env) {
    const auto outcome = outcome_of(env, {1});
    ensure(env.rank == 1 ? outcome.starts_with("replicas differ after step 200: rank 1 on ") &&
                               outcome.find(" has different bits from the other 2 ranks") != std::string::npos
                         : outcome == "ended",
           outcome.c_str());
  });
  spawn(3, [](const WorkerEnv& env) { ensure(outcome_of(env, {}) == "equal", "they are equal"); });
}

TEST_CASE("of two ranks that differ both are named", "[replica_check]") {
  spawn(2, [](const WorkerEnv& env) {
    const auto outcome = outcome_of(env, {0});
    ensure(outcome.starts_with("replicas differ after step 200: rank 0 on ") &&
               outcome.find(", rank 1 on ") != std::string::npos &&
               outcome.find("no majority shows which") != std::string::npos,
           outcome.c_str());
  });
}

TEST_CASE("replicas on GPUs are summed there", "[replica_check]") {
  test::on_fake_gpus(2, [](const ProcessGroup& group) {
    const auto whole = torch::arange(1000.).to(group.device());
    const std::vector<at::Tensor> tensors = {whole.narrow(0, 1, 998), torch::ones({3}).to(group.device())};
    ddp::check_replicas(group, tensors, 1);
    const auto sum = ddp::checksum(tensors);
    whole.narrow(0, 998, 1).add_(0.5);
    ensure(ddp::checksum(tensors) != sum, "the last element counts");
    whole.narrow(0, 998, 1).sub_(0.5);
    whole.narrow(0, 0, 1).add_(1);
    ensure(ddp::checksum(tensors) == sum, "what is beside them does not");
  });
}
