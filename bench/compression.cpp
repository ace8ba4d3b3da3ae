// One rank of bench/compression.py: steps of one model under every gradient compression in turn. Rank 0
// prints a JSON line for each turn and compression: seconds per step, and bytes per step that its network
// interface sent.
#include <torch/nn/functional.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <ddprun/common/worker_env.h>
#include <ddprun/ddp/comm_hooks.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/group/collectives.h>

using namespace ddprun;

namespace {

/// 2,107,914 parameters: 8.4 MB of gradients.
struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    register_module("in", in);
    register_module("middle", middle);
    register_module("narrow", narrow);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out(torch::relu(narrow(torch::relu(middle(torch::relu(in(x)))))));
  }
  torch::nn::Linear in{512, 1024}, middle{1024, 1024}, narrow{1024, 512}, out{512, 10};
};
TORCH_MODULE(Model);

ddp::CommHook make_hook(const std::string& name, const ddp::ProcessGroup& group) {
  const auto space = name.find(' ');
  if (space == std::string::npos) return ddp::make_comm_hook(name, group);
  return ddp::powersgd_hook(std::make_shared<ddp::PowerSgd>(
      group, ddp::PowerSgd::Options{.rank = std::stoll(name.substr(space)), .start_iteration = 2}));
}

double sent_bytes(const std::string& interface) {
  std::ifstream file("/proc/thread-self/net/dev");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(interface + ":");
    if (colon == std::string::npos) continue;
    std::istringstream numbers(line.substr(colon + interface.size() + 1));
    double number = 0;
    for (int field = 0; field < 9; ++field) numbers >> number;  // the ninth: bytes sent
    return number;
  }
  return 0;
}

struct Candidate {
  Candidate(const std::string& its_name, const ddp::ProcessGroup& group)
      : name(its_name), ddp(*model, group) {
    if (auto hook = make_hook(name, group)) ddp.register_comm_hook(std::move(hook));
  }
  void step() {
    model->zero_grad();
    ddp.forward([&] { return torch::cross_entropy_loss(model->forward(images), labels); }).backward();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.sub_(parameter.grad(), 0.01);
  }
  std::string name;
  Model model;
  ddp::DistributedDataParallel ddp;
  torch::Tensor images = torch::randn({32, 512}), labels = torch::randint(0, 10, {32}, torch::kInt64);
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: compression INTERFACE TURNS STEPS_A_TURN, with RANK and so on in the environment\n";
    return 2;
  }
  const int turns = std::atoi(argv[2]), steps = std::atoi(argv[3]);
  auto group = ddp::ProcessGroup::connect(from_env([](const std::string& name) -> std::optional<std::string> {
                                            const char* value = std::getenv(name.c_str());
                                            return value ? std::optional<std::string>(value) : std::nullopt;
                                          }),
                                          {});
  {
    std::vector<std::unique_ptr<Candidate>> candidates;
    for (const std::string name : {"none", "fp16", "bf16", "powersgd 1", "powersgd 2", "powersgd 4"})
      candidates.push_back(std::make_unique<Candidate>(name, group));
    for (auto& candidate : candidates)
      for (int i = 0; i < 4; ++i) candidate->step();  // until buckets are rebuilt and PowerSGD has begun
    for (int turn = 0; turn < turns; ++turn)
      for (auto& candidate : candidates) {
        ddp::all_reduce_sum(group, {0});
        const double before = sent_bytes(argv[1]);
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < steps; ++i) candidate->step();
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        if (group.rank() == 0)
          std::cout << R"({"hook": ")" << candidate->name << R"(", "seconds": )" << seconds.count() / steps
                    << R"(, "bytes": )" << (sent_bytes(argv[1]) - before) / steps << "}" << std::endl;
      }
  }
  group.close();
}
