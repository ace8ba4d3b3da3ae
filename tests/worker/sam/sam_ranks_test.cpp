#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include "tests/support/catch.h"
#include "tests/support/counted_memory.h"
#include "tests/support/fake_gpus.h"
#include "tests/support/run_ranks.h"
#include "tests/worker/sam/sam_support.h"
#include "worker/sam/model/vision_encoder.h"

using namespace ddprun;
using namespace ddprun::test;
using ddp::DistributedDataParallel;

namespace {

sam::Sam make_model(bool checkpointing) {
  torch::manual_seed(5);
  sam::Sam model(small_sam_config());
  model->set_gradient_checkpointing(checkpointing);
  return model;
}

/// Two steps on this rank's image; the gradients of the second.
void train_two_steps(sam::Sam& model, const ddp::ProcessGroup& group,
                     const DistributedDataParallel::Options& options) {
  DistributedDataParallel ddp(*model, group, options);
  const auto input = make_sam_input(model->config(), "points", torch::kFloat);
  const auto mine = [&](const torch::Tensor& x) { return x.narrow(0, group.rank(), 1); };
  const sam::SamPrompts prompts{mine(input.prompts.points), mine(input.prompts.labels)};
  for (int step = 0; step < 2; ++step) {
    ddp.zero_grad();
    ddp.forward(
           [&] { return model->forward(mine(input.image), prompts, /*multimask=*/false).masks.pow(2).sum(); })
        .backward();
  }
}

void ensure_same_gradients(const sam::Sam& a, const sam::Sam& b) {
  for (const auto& item : a->named_parameters()) {
    const auto one = item.value().grad(), other = b->named_parameters()[item.key()].grad();
    const bool same = one.defined() == other.defined() && (!one.defined() || one.equal(other));
    ensure(same, ("gradients of " + item.key() + " differ").c_str());
  }
}

}  // namespace

TEST_CASE("SAM's gradient checkpointing changes no bit of the gradients that ranks average", "[sam][ranks]") {
  const bool static_graph = GENERATE(true, false);
  run_ranks(2, [&](const ddp::ProcessGroup& group) {
    torch::set_num_threads(1);
    DistributedDataParallel::Options options;
    (static_graph ? options.static_graph : options.find_unused_parameters) = true;
    auto plain = make_model(false), again = make_model(true);
    train_two_steps(plain, group, options);
    train_two_steps(again, group, options);
    ensure_same_gradients(plain, again);
  });
}

TEST_CASE("under DistributedDataParallel a checkpointed encoder's gradients arrive once each",
          "[sam][ranks]") {
  run_ranks(2, [](const ddp::ProcessGroup& group) {
    torch::set_num_threads(1);
    torch::manual_seed(6);
    sam::SamVisionEncoder encoder(small_sam_config().vision);
    for (auto& parameter : encoder->parameters()) torch::nn::init::normal_(parameter, 0, 0.1);
    encoder->set_gradient_checkpointing(true);
    // Of every gradient two would be an error, and of one that lacks the next forward's.
    DistributedDataParallel ddp(*encoder, group);
    const auto image = make_sam_input(small_sam_config(), "", torch::kFloat).image;
    for (int step = 0; step < 3; ++step)
      ddp.forward([&] { return encoder->forward(image * group.rank()).pow(2).sum(); }).backward();
    ensure(ddp.statistics().iteration == 3, "three reductions");
  });
}

TEST_CASE("with gradient checkpointing a frozen encoder stays frozen", "[sam][ranks]") {
  run_ranks(2, [](const ddp::ProcessGroup& group) {
    torch::set_num_threads(1);
    auto model = make_model(true);
    model->freeze_encoder();
    DistributedDataParallel::Options options;
    options.static_graph = true;
    train_two_steps(model, group, options);
    for (const auto& item : model->named_parameters())
      ensure(!item.key().starts_with("vision_encoder.") || !item.value().grad().defined(),
             item.key().c_str());
  });
}

TEST_CASE("attention with relative positions never has a tensor of all pairs", "[sam][ranks]") {
  run_ranks(1, [](const ddp::ProcessGroup&) {  // its own process, for the counting allocator
    torch::set_num_threads(1);
    count_tensor_memory();
    const auto make = [](std::int64_t width) { return torch::randn({1, 64 * 64, width}).requires_grad_(); };
    const auto out = sam::relative_attention(make(8), make(8), make(8), make(64), make(64));
    out.sum().backward();
    ensure(take_peak_tensor_bytes() < 64 * 64 * 64 * 64 * sizeof(float) / 4, "a quarter of all pairs");
  });
}

TEST_CASE("in 16 bits a GPU's own kernels compute the encoder's attention, forwards and backwards", "[sam]") {
  const auto attend_on = [](std::int64_t kernels, torch::Dtype of_bias) {
    return [=](const ddp::ProcessGroup& group) {
      static std::vector<torch::Dtype> biases;  // of each call of the kernels
      biases.clear();
      at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& call) {
                              if (std::string_view(call.name()) == "aten::scaled_dot_product_attention")
                                biases.push_back(call.inputs()[3].toTensor().scalar_type());
                              return std::unique_ptr<at::ObserverContext>();
                            }).needsInputs(true));
      torch::manual_seed(7);
      std::vector<torch::Tensor> exact, in;
      for (const std::int64_t width : {6, 6, 6, 3, 5}) {
        exact.push_back(
            torch::randn({2, 15, width}).to(torch::kBFloat16).to(torch::kDouble).requires_grad_());
        in.push_back(exact.back().detach().to(group.device(), torch::kBFloat16).requires_grad_());
      }
      const auto gradients_of = [](const std::vector<torch::Tensor>& x) {
        return torch::autograd::grad({sam::relative_attention(x[0], x[1], x[2], x[3], x[4]).pow(2).sum()}, x);
      };
      const auto found = gradients_of(in);
      ensure(biases == std::vector<torch::Dtype>(static_cast<std::size_t>(kernels), of_bias),
             "these kernels");
      const auto expected = gradients_of(exact);
      for (std::size_t i = 0; i < in.size(); ++i)
        ensure(relative_difference(found[i].cpu(), expected[i].detach()) < 0.02, "the gradients");
    };
  };
  on_fake_gpus(1, attend_on(2, torch::kBFloat16));
  run_ranks(1, attend_on(1, torch::kFloat32));  // the CPU's kernels go back through its own arithmetic
}
