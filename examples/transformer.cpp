// A small transformer learns to continue a text, byte by byte: a file's, or sums such as "27+14=41;". With
// gradient accumulation, a schedule with warm-up, clipping, averaged weights, early stopping, and figures in
// metrics.csv; all of it goes on after a lost rank or a restart, and the end stays the end.
//
//   ddprun --nproc-per-node=2 --recover=rank --max-restarts=3 ./transformer [FILE]
#include <ddprun/runtime.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <fstream>
#include <sstream>

using namespace ddprun;
constexpr std::int64_t kEpochs = 12, kLength = 32, kWidth = 64, kBatchesPerStep = 4;

/// Examples are kLength bytes of a text, and for each of them the next one.
struct Text {
  torch::Tensor bytes;  // int64
  std::int64_t size() const { return (bytes.size(0) - 1) / kLength; }
  std::pair<torch::Tensor, torch::Tensor> get(std::int64_t index) const {
    return {bytes.narrow(0, index * kLength, kLength), bytes.narrow(0, index * kLength + 1, kLength)};
  }
};

torch::Tensor read_text(const std::string& file) {
  std::ostringstream text;
  if (!file.empty()) text << std::ifstream(file, std::ios::binary).rdbuf();
  for (int i = 0; file.empty() && i < 3000; ++i)
    text << i * 37 % 50 << '+' << i * 23 % 49 << '=' << i * 37 % 50 + i * 23 % 49 << ';';
  const auto bytes = text.str();
  if (bytes.size() < 1000) throw UsageError(file + ": expected a file of 1000 bytes or more");
  return torch::tensor(std::vector<std::uint8_t>(bytes.begin(), bytes.end())).to(torch::kLong);
}

struct TransformerImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& bytes) {  // [batch, kLength] -> [batch, 256, kLength]
    const auto hidden = byte(bytes) + place(torch::arange(kLength, bytes.options()));
    const auto later = torch::full({kLength, kLength}, -1e9, hidden.options()).triu(1);  // not to be seen
    return next(encoder(hidden.transpose(0, 1), later)).permute({1, 2, 0});
  }
  torch::nn::Embedding byte{register_module("byte", torch::nn::Embedding(256, kWidth))};
  torch::nn::Embedding place{register_module("place", torch::nn::Embedding(kLength, kWidth))};
  torch::nn::TransformerEncoderLayer layer{
      torch::nn::TransformerEncoderLayerOptions(kWidth, 4).dim_feedforward(2 * kWidth)};
  torch::nn::TransformerEncoder encoder{register_module("encoder", torch::nn::TransformerEncoder(layer, 2))};
  torch::nn::Linear next{register_module("next", torch::nn::Linear(kWidth, 256))};
};
TORCH_MODULE(Transformer);

int main(int argc, char** argv) {
  return run([&](Context& ctx) {
    torch::manual_seed(0);
    const auto text = read_text(argc > 1 ? argv[1] : "");
    const auto split = text.size(0) / 10;
    DataLoader loader(ctx, Text{text.slice(0, split)}, {.batch_size = 16});
    DataLoader valid_loader(ctx, Text{text.slice(0, 0, split)}, {.batch_size = 64, .each_once = true});
    const auto steps = (loader.batches() + kBatchesPerStep - 1) / kBatchesPerStep;  // per epoch

    DistributedDataParallel model(ctx, Transformer());
    Optimizer<torch::optim::AdamW> optimizer(model.parameters(), 3e-3);
    train::LrSchedule schedule(optimizer, {.kind = train::LrScheduleKind::kCosine,
                                           .per_step = true,
                                           .warmup_steps = steps,
                                           .cosine = {.t_max = (kEpochs - 1) * steps}});
    train::Ema ema(model.module(), {.decay = 0.9});
    train::EarlyStopping stopping({.monitor = "val_loss", .min_delta = 0.01, .patience = 2});
    MetricFiles metrics(ctx, {.csv = "metrics.csv", .tensorboard = "transformer"});
    Checkpoint checkpoint(ctx, "transformer.pt", model, optimizer);
    checkpoint.keep("schedule", schedule);
    checkpoint.keep("ema", ema);
    checkpoint.keep("stopping", stopping);
    checkpoint.keep("metrics", metrics);

    const auto validate = [&] {
      const torch::NoGradGuard no_grad;
      const auto averaged = ema.swap_in();
      double sum = 0;
      model->eval();
      for (auto& [bytes, following] : valid_loader.epoch())
        sum += torch::cross_entropy_loss(model->forward(bytes), following).item<double>() * bytes.size(0);
      model->train();
      return ctx.all_reduce(sum) / valid_loader.dataset().size();
    };
    for (std::int64_t epoch = checkpoint.resume(); epoch < kEpochs; checkpoint.save(++epoch)) {
      double sum = 0;  // of this step's losses
      for (auto& [bytes, following] : loader.epoch(epoch)) {
        const auto batch = loader.position(), before = (batch - 1) / kBatchesPerStep * kBatchesPerStep;
        const auto of_step = std::min(kBatchesPerStep, loader.batches() - before);
        const bool steps_now = batch == before + of_step;
        const auto guard = model.no_sync(!steps_now);  // only the last batch's backward exchanges gradients
        const auto loss = torch::cross_entropy_loss(model(bytes), following) / of_step;
        sum += loss.item<double>();
        // Here, because between the step and what is kept there must be no collective.
        const double train_loss = steps_now ? ctx.all_reduce(sum, Op::kMean) : 0;
        loss.backward();
        if (!steps_now) continue;
        train::clip_grad_norm(model.parameters(), 1);
        const auto step = epoch * steps + before / kBatchesPerStep + 1;
        optimizer.step();
        schedule.after_step();
        ema.update();
        metrics.add({{"step", step}, {"train_loss", train_loss}});
        ctx.status({.step = step, .steps = kEpochs * steps, .loss = train_loss});
        optimizer.zero_grad();
        sum = 0;
      }
      const double val_loss = validate();
      ctx.print("epoch ", epoch + 1, ": validation loss ", val_loss);
      metrics.add({{"step", (epoch + 1) * steps}, {"val_loss", val_loss}});
      if (stopping.check(val_loss, epoch).stop) {
        checkpoint.finish();
        break;
      }
    }
  });
}
