#pragma once

// What the tests of the task sam share: a small model, and the images that come with the programs.
#include <algorithm>
#include <fstream>

#include "tests/integration/training_job.h"

namespace ddprun::test {

/// A model of 64 pixels with two layers, one of them with windows.
constexpr const char* kTinySam = R"({
  "vision_config": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 64,
                    "image_size": 64, "patch_size": 8, "output_channels": 32, "num_pos_feats": 16,
                    "window_size": 3, "global_attn_indexes": [1]},
  "prompt_encoder_config": {"hidden_size": 32, "image_size": 64, "patch_size": 8, "mask_input_channels": 4},
  "mask_decoder_config": {"hidden_size": 32, "mlp_dim": 64, "num_attention_heads": 4, "iou_head_hidden_dim": 32}
})";

inline fs::path sample() { return fs::path(DDPRUN_SOURCE_DIR) / "share/ddprun/nuclei-sample"; }

inline fs::path first_image() {
  std::vector<fs::path> images;
  for (const auto& entry : fs::directory_iterator(sample() / "images")) images.push_back(entry.path());
  return *std::min_element(images.begin(), images.end());
}

struct SamRun {
  TempDir dir;

  SamRun() { std::ofstream(dir.path() / "tiny.json") << kTinySam; }

  /// Of a new tiny model, unless the flags name a checkpoint.
  Command command(int ranks, const std::string& out, std::vector<std::string> flags) const {
    const bool is_new = std::none_of(flags.begin(), flags.end(),
                                     [](const auto& flag) { return flag.starts_with("--checkpoint="); });
    flags.insert(flags.begin(),
                 {"--batch-size=2", "--lr=1e-3", "--lr-schedule=none", "--ema=0", "--warmup-steps=2",
                  "--val-split=0.1", "--no-augment", "--log-interval=1", "--no-tensorboard"});
    if (is_new) flags.insert(flags.begin(), "--architecture=" + (dir.path() / "tiny.json").string());
    auto command = training("sam", ranks, dir.path() / out, flags);
    command.env["OMP_NUM_THREADS"] = "1";
    return command;
  }
  void run(int ranks, const std::string& out, const std::vector<std::string>& flags) const {
    Child child(command(ranks, out, flags));
    const auto status = child.wait(kTraining);
    CAPTURE(child.err());
    REQUIRE(status == ExitStatus::exited(0));
  }

  /// A folder with the sample's first picture, three times.
  fs::path one_picture() const {
    const auto data = dir.path() / "data";
    for (const char* part : {"images", "masks"}) {
      fs::create_directories(data / part);
      for (const char* name : {"a.png", "b.png", "c.png"})
        fs::copy(sample() / part / first_image().filename(), data / part / name);
    }
    return data;
  }
};

/// The worker alone, with these words.
inline Child start_worker(const std::vector<std::string>& words) {
  Command command;
  command.argv = {WORKER_PROGRAM};
  command.argv.insert(command.argv.end(), words.begin(), words.end());
  return Child(command);
}

}  // namespace ddprun::test
