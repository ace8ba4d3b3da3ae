#include <numeric>

#include <ddprun/ddp/distributed_data_parallel.h>
#include "tests/support/catch.h"
#include "tests/support/golden.h"
#include "tests/support/run_ranks.h"
#include "tests/worker/ddprun/ddp/layer_stack.h"

using namespace ddprun;
using ddp::DistributedDataParallel;
using ddp::ProcessGroup;

namespace {

std::vector<test::Layer> layers_of(const nlohmann::json& golden) {
  std::vector<test::Layer> layers;
  for (const auto& layer : golden["layers"])
    layers.push_back(
        {layer[0], layer[1], layer[2] == "float64" ? torch::kFloat64 : torch::kFloat32, layer[3]});
  return layers;
}

DistributedDataParallel::Options bucket_options_of(const nlohmann::json& golden) {
  DistributedDataParallel::Options options;
  options.bucket_bytes = golden.value("bucket_bytes", options.bucket_bytes);
  if (golden.contains("first_bucket_bytes")) options.first_bucket_bytes = golden["first_bucket_bytes"];
  options.bucket_bytes_list = golden.value("bucket_bytes_list", options.bucket_bytes_list);
  options.gradient_as_bucket_view = golden.value("gradient_as_bucket_view", false);
  options.find_unused_parameters = golden.value("find_unused_parameters", false);
  options.static_graph = golden.value("static_graph", false);
  return options;
}

void check_plan(const nlohmann::json& golden, const ProcessGroup& group) {
  using Bytes = std::vector<std::int64_t>;
  const auto layers = layers_of(golden);
  test::LayerStack model(layers);
  DistributedDataParallel ddp(model, group, bucket_options_of(golden["options"]));
  const auto where = golden.dump();
  ensure(ddp.statistics().bucket_bytes == golden["initial_bytes"].get<Bytes>(),
         ("the first buckets of " + where).c_str());
  for (int step = 0; step < 4; ++step)
    ddp.forward([&] { return model.forward(torch::ones({2, layers[0].in})).sum(); }).backward();
  const auto statistics = ddp.statistics();
  ensure(statistics.buckets_rebuilt == golden.contains("rebuilt_bytes"),
         ("buckets rebuilt: " + where).c_str());
  ensure(statistics.bucket_bytes == golden.value("rebuilt_bytes", golden["initial_bytes"]).get<Bytes>(),
         ("the later buckets of " + where).c_str());
  if (golden.contains("rebuilt_parameters"))
    ensure(statistics.bucket_parameters ==
               golden["rebuilt_parameters"].get<std::vector<std::vector<std::string>>>(),
           ("the parameters in the buckets of " + where).c_str());
  ensure(statistics.unused_bytes == golden["unused_bytes"].get<std::int64_t>(),
         ("unused bytes: " + where).c_str());
}

}  // namespace

TEST_CASE("buckets are those of Python's DDP, for all sizes and options", "[distributed_data_parallel]") {
  const auto plans = test::read_golden("ddp_buckets/plans.json");
  REQUIRE(plans.size() == 58);
  test::run_ranks(2, [&](const ProcessGroup& group) {
    for (const auto& plan : plans) check_plan(plan, group);
  });
}

TEST_CASE("statistics say what the steps cost", "[distributed_data_parallel]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    test::LayerStack model({{30, 400, torch::kFloat32}, {400, 2, torch::kFloat32}});
    DistributedDataParallel::Options options;
    options.bucket_bytes = 5000;
    DistributedDataParallel ddp(model, group, options);
    for (int step = 0; step < 4; ++step)
      ddp.forward([&] { return model.forward(torch::ones({2, 30})).sum(); }).backward();
    const auto statistics = ddp.statistics();
    ensure(statistics.backend == "gloo" && statistics.iteration == 4, "backend and iteration");
    ensure(statistics.buckets_reduced == static_cast<std::int64_t>(statistics.bucket_bytes.size()),
           "buckets");
    ensure(std::accumulate(statistics.bucket_bytes.begin(), statistics.bucket_bytes.end(), std::int64_t{0}) ==
               (30 * 400 + 400 + 400 * 2 + 2) * 4,
           "every parameter is in a bucket");
    ensure(statistics.forward_ns > 0 && statistics.backward_ns > 0 && statistics.communication_ns > 0,
           "times");
  });
}
