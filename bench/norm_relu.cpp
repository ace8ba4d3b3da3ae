// norm_relu: batch norm, addition and ReLU of a ResNet's activations in bfloat16 on one core, as three
// operations of LibTorch and in one pass each way. Prints the least CPU time of 12 runs each, in turns.
#include <ddprun/ddp/norm_relu.h>
#include <ddprun/ddp/sync_batch_norm.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>

using namespace ddprun;

namespace {

double cpu_ms() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

void measure(std::int64_t channels, std::int64_t side, bool adds) {
  const auto image = [&](bool is_leaf) {
    return torch::randn({128, channels, side, side})
        .to(torch::kBFloat16)
        .contiguous(at::MemoryFormat::ChannelsLast)
        .requires_grad_(is_leaf);
  };
  auto input = image(true), shortcut = image(true);
  const auto gradient = image(false);
  ddp::SyncBatchNorm norm(torch::nn::BatchNormOptions{channels});
  std::array<std::array<double, 2>, 2> least{{{1e9, 1e9}, {1e9, 1e9}}};
  for (int run = 0; run < 24; ++run) {
    auto& [forward, backward] = least[run % 2];
    input.mutable_grad() = shortcut.mutable_grad() = torch::Tensor();
    const double begin = cpu_ms();
    torch::Tensor result;
    if (run % 2 == 1) {
      const auto added = [&] { return shortcut; };
      result = adds ? norm->forward_relu(input, added) : norm->forward_relu(input);
    } else {
      result = norm->forward(input);
      if (adds) result += shortcut;
      result = result.relu_();
    }
    const double middle = cpu_ms();
    result.backward(gradient);
    forward = std::min(forward, middle - begin);
    backward = std::min(backward, cpu_ms() - middle);
  }
  std::printf("| %ld x %ld x %ld%s | %.2f -> %.2f | %.2f -> %.2f |\n", static_cast<long>(channels),
              static_cast<long>(side), static_cast<long>(side), adds ? ", shortcut" : "", least[0][0],
              least[1][0], least[0][1], least[1][1]);
}

}  // namespace

int main() {
  at::set_num_threads(1);
  ddp::fuse_norm_relu();
  std::printf("| 128 images of | forward, ms | backward, ms |\n|---|---|---|\n");
  for (const bool adds : {false, true}) {
    measure(64, 28, adds);
    measure(128, 14, adds);
    measure(256, 7, adds);
    measure(512, 4, adds);
  }
}
