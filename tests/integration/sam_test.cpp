// The task sam, by the real programs: a small model on the images that come with them.
#include <fstream>

#include "tests/integration/training_job.h"
#include "worker/image/png.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// A model of 64 pixels with two layers, one of them with windows.
constexpr const char* kTiny = R"({
  "vision_config": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 64,
                    "image_size": 64, "patch_size": 8, "output_channels": 32, "num_pos_feats": 16,
                    "window_size": 3, "global_attn_indexes": [1]},
  "prompt_encoder_config": {"hidden_size": 32, "image_size": 64, "patch_size": 8, "mask_input_channels": 4},
  "mask_decoder_config": {"hidden_size": 32, "mlp_dim": 64, "num_attention_heads": 4, "iou_head_hidden_dim": 32}
})";

struct SamRun {
  TempDir dir;

  SamRun() { std::ofstream(dir.path() / "tiny.json") << kTiny; }

  Command command(int ranks, const std::string& out, std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {"--architecture=" + (dir.path() / "tiny.json").string(), "--batch-size=2",
                                 "--lr=1e-3", "--warmup-steps=2", "--log-interval=1", "--no-tensorboard"});
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
};

fs::path sample() { return fs::path(DDPRUN_SOURCE_DIR) / "share/ddprun/nuclei-sample"; }

fs::path first_image() {
  std::vector<fs::path> images;
  for (const auto& entry : fs::directory_iterator(sample() / "images")) images.push_back(entry.path());
  return *std::min_element(images.begin(), images.end());
}

/// The sample with its first image cut to that many bytes.
fs::path copied_sample(const SamRun& sam, std::uintmax_t first_image_bytes) {
  const auto copy = sam.dir.path() / "bad";
  fs::copy(sample(), copy, fs::copy_options::recursive);
  fs::resize_file(copy / "images" / first_image().filename(), first_image_bytes);
  return copy;
}

Child worker(const std::vector<std::string>& words) {
  Command command;
  command.argv = {WORKER_PROGRAM};
  command.argv.insert(command.argv.end(), words.begin(), words.end());
  return Child(command);
}

}  // namespace

TEST_CASE("sam trains on two ranks, on the images that come with the programs", "[sam]") {
  const SamRun sam;
  sam.run(2, "run", {"--epochs=3", "--val-split=0.25"});
  const auto out = sam.dir.path() / "run";
  const auto summary = read_summary(out);
  for (const char* name : {"val_dice", "val_iou", "val_pixel_acc"}) {
    CAPTURE(name);
    CHECK(summary[name].get<double>() >= 0);
    CHECK(summary[name].get<double>() <= 1);
  }
  const auto losses = values_of(out, "train_loss_epoch");
  REQUIRE(losses.size() == 3);
  CHECK(std::stod(losses.back()) < std::stod(losses.front()));
  const auto picture = image::read_png(out / "figures/samples.png");
  CHECK(picture.height > 3 * 100);  // a row for each of three validation images
  CHECK_THAT(summary["best_checkpoint"].get<std::string>(), ContainsSubstring("sam-epoch=0"));
  CHECK_THAT(read_file(out / "report.html"), ContainsSubstring("val_dice"));
  for (const char* name : {"config.json", "model.safetensors", "preprocessor_config.json"})
    CHECK(fs::file_size(out / "best" / name) > 0);
}

TEST_CASE("sam learns what a point means", "[sam]") {
  const SamRun sam;
  const auto data = sam.dir.path() / "data";  // one picture three times, each with a point in another nucleus
  for (const char* part : {"images", "masks"}) {
    fs::create_directories(data / part);
    for (const char* name : {"a.png", "b.png", "c.png"})
      fs::copy(sample() / part / first_image().filename(), data / part / name);
  }
  const auto points = sam.dir.path() / "points.csv";
  std::ofstream(points) << "index,y,x,label\n0,162,91,1\n1,223,44,1\n2,108,83,1\n";
  sam.run(1, "run",
          {"--data=" + data.string(), "--points=" + points.string(), "--val-split=0.4", "--epochs=120",
           "--val-every-steps=120", "--lr=2e-3"});
  const auto losses = values_of(sam.dir.path() / "run", "train_loss_epoch");
  REQUIRE(losses.size() == 120);
  CHECK(std::stod(losses.front()) > 0.9);
  CHECK(std::stod(losses.back()) < 0.25);  // both nuclei for either point: 0.33
}

TEST_CASE("sam: a run that goes on equals one that was never stopped", "[sam]") {
  const SamRun sam;
  sam.run(2, "whole", {"--epochs=3"});
  sam.run(2, "parts", {"--epochs=3", "--max-steps=4"});
  sam.run(2, "parts", {"--epochs=3", "--resume=auto"});
  CHECK(values_of(sam.dir.path() / "parts", "train_loss") ==
        values_of(sam.dir.path() / "whole", "train_loss"));
  CHECK(read_file(sam.dir.path() / "parts/best/model.safetensors") ==
        read_file(sam.dir.path() / "whole/best/model.safetensors"));
}

TEST_CASE("sam: what a frozen encoder gave is kept, and the losses are the same", "[sam]") {
  const SamRun sam;
  const auto cache = sam.dir.path() / "cache";
  const std::vector<std::string> flags = {"--epochs=2", "--freeze=encoder"};
  auto cached = flags;
  cached.push_back("--embedding-cache=" + cache.string());
  sam.run(2, "plain", flags);
  sam.run(2, "first", cached);
  const auto count = std::distance(fs::directory_iterator(cache), fs::directory_iterator());
  CHECK(count == 12);  // of each image one
  sam.run(2, "second", cached);
  CHECK(std::distance(fs::directory_iterator(cache), fs::directory_iterator()) == count);
  const auto losses = values_of(sam.dir.path() / "plain", "train_loss");
  CHECK(losses.size() == 6);
  CHECK(values_of(sam.dir.path() / "first", "train_loss") == losses);
  CHECK(values_of(sam.dir.path() / "second", "train_loss") == losses);
  CHECK(values_of(sam.dir.path() / "second", "val_dice") == values_of(sam.dir.path() / "plain", "val_dice"));
}

TEST_CASE("sam: what is kept of one encoder is not taken for another's", "[sam]") {
  const SamRun sam;
  const std::vector<std::string> frozen = {"--epochs=2", "--freeze=encoder"};
  const auto run = [&](const std::string& out, std::vector<std::string> more, bool cached) {
    more.insert(more.end(), frozen.begin(), frozen.end());
    if (cached) more.push_back("--embedding-cache=" + (sam.dir.path() / "cache").string());
    sam.run(1, out, more);
    return values_of(sam.dir.path() / out, "train_loss");
  };
  run("new", {}, true);
  sam.run(1, "trained", {"--epochs=1"});
  const auto resume = "--resume=" + (sam.dir.path() / "trained/checkpoints/last.pt").string();
  CHECK(run("resumed", {resume}, true) == run("plain", {resume}, false));
}

TEST_CASE("sam trains with recomputation, in bfloat16, sharded, and with uneven ranks", "[sam]") {
  const SamRun sam;
  sam.run(2, "plain", {"--max-steps=3"});
  const auto losses = values_of(sam.dir.path() / "plain", "train_loss");
  sam.run(2, "recomputed", {"--max-steps=3", "--gradient-checkpointing"});
  CHECK(values_of(sam.dir.path() / "recomputed", "train_loss") == losses);
  const auto near = [&](const std::string& out, double tolerance) {
    const auto found = values_of(sam.dir.path() / out, "train_loss");
    REQUIRE(found.size() == losses.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      CAPTURE(out, i);
      CHECK(std::stod(found[i]) == Approx(std::stod(losses[i])).epsilon(tolerance));
    }
  };
  sam.run(2, "bf16", {"--max-steps=3", "--precision=bf16-mixed"});
  near("bf16", 0.02);
  sam.run(2, "zero1", {"--max-steps=3", "--zero1"});
  near("zero1", 1e-5);
  sam.run(2, "fsdp", {"--max-steps=3", "--fsdp"});
  near("fsdp", 1e-5);
  sam.run(2, "join", {"--epochs=1", "--join"});  // eleven images: one rank has a batch less
}

TEST_CASE("sam: --predict writes a mask of the picture's size, 0 and 255", "[sam]") {
  const SamRun sam;
  sam.run(1, "run", {"--max-steps=1"});
  const auto mask = sam.dir.path() / "mask.png";
  const auto best = (sam.dir.path() / "run/best").string();
  auto child = worker({"sam", "--predict", first_image().string(), "--point", "30,40", "--point=10,20,0",
                       "--checkpoint", best, "--mask-out", mask.string()});
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  CHECK_THAT(child.out(), ContainsSubstring("wrote " + mask.string() + ": "));
  const auto written = image::read_png(mask), picture = image::read_png(first_image());
  CHECK((written.width == picture.width && written.height == picture.height && written.channels == 1));
  for (const auto byte : written.bytes) REQUIRE((byte == 0 || byte == 255));

  const std::vector<std::pair<std::vector<std::string>, std::string>> refused = {
      {{"--point=9999,1", "--checkpoint", best}, "expected a point inside"},
      {{"--point=1", "--checkpoint", best}, "--point"},
      {{"--point=1,1", "--checkpoint", (sam.dir.path() / "nowhere").string()}, "nowhere"},
      {{"--point=1,1"}, "--checkpoint is required"}};
  for (const auto& [words, message] : refused) {
    CAPTURE(message);
    std::vector<std::string> all = {"sam", "--predict=" + first_image().string(),
                                    "--mask-out=" + (sam.dir.path() / "none.png").string()};
    all.insert(all.end(), words.begin(), words.end());
    auto failing = worker(all);
    const auto status = failing.wait(kTraining);
    CHECK((status == ExitStatus::exited(1) || status == ExitStatus::exited(2)));
    CHECK_THAT(failing.err(), ContainsSubstring(message));
    CHECK(count_of("\n", failing.err()) == 1);
    CHECK_FALSE(fs::exists(sam.dir.path() / "none.png"));
  }
}

TEST_CASE("worker export writes the folder of a SAM from its checkpoint, and of nothing else", "[sam]") {
  const SamRun sam;
  sam.run(1, "run", {"--max-steps=2", "--save-top-k=1"});
  const auto run = sam.dir.path() / "run";
  fs::remove(sam.dir.path() / "tiny.json");  // the checkpoint knows its model's shape
  auto child = worker({"export", read_summary(run)["best_checkpoint"], (run / "exported").string()});
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  for (const char* name : {"config.json", "model.safetensors", "preprocessor_config.json"})
    CHECK(read_file(run / "exported" / name) == read_file(run / "best" / name));

  Child linear(training("linear", 0, sam.dir.path() / "linear", {"--epochs=1"}));
  REQUIRE(linear.wait(kTraining) == ExitStatus::exited(0));
  auto refused =
      worker({"export", (sam.dir.path() / "linear/checkpoints/last.pt").string(), (run / "linear").string()});
  CHECK(refused.wait(kTraining) == ExitStatus::exited(2));
  CHECK_THAT(refused.err(), ContainsSubstring("expected OUT to end in .pt or .safetensors") &&
                                ContainsSubstring("a folder is for a checkpoint of the task sam"));
  CHECK_FALSE(fs::exists(run / "linear"));
}

TEST_CASE("sam: best/ is this run's, and a run whose best/ cannot be written ends well", "[sam]") {
  const SamRun sam;
  const auto best = sam.dir.path() / "run/best";
  sam.run(1, "run", {"--max-steps=1"});
  CHECK(fs::exists(best / "model.safetensors"));
  std::ofstream(best / "left.txt") << "of the run before";
  sam.run(1, "run", {"--max-steps=1", "--overwrite"});
  CHECK_FALSE(fs::exists(best / "left.txt"));
  sam.run(1, "other", {"--max-steps=1"});
  const auto other = sam.dir.path() / "other/best";
  fs::remove_all(other);
  std::ofstream(other) << "in the way";
  Child child(sam.command(1, "other", {"--max-steps=2", "--resume=auto"}));
  CHECK(child.wait(kTraining) == ExitStatus::exited(0));
  CHECK_THAT(child.err(),
             ContainsSubstring("no model in") && ContainsSubstring("worker export makes it from"));
}

TEST_CASE("sam refuses what does not fit in one line, before a run begins", "[sam]") {
  const SamRun sam;
  const auto bad = copied_sample(sam, /*first_image_bytes=*/20);  // its header is cut
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"--data=" + bad.string(), first_image().filename().string()},
      {"--points=" + (sam.dir.path() / "tiny.json").string(), "tiny.json"},
      {"--checkpoint=" + sample().string(), "nuclei-sample"},
      {"--architecture=enormous", "expected small, base, large, huge or a config.json, got 'enormous'"},
      {"--image-size=100",
       "--image-size: vision_config.image_size: expected a multiple of patch_size (16), got 100"},
      {"--loss=mse", "expected dice, dice_focal or dice_bce, got 'mse'"},
      {"--embedding-cache=x", "expected --freeze=encoder too"}};
  for (const auto& [flag, message] : refused) {
    CAPTURE(flag);
    Child child(training("sam", 0, sam.dir.path() / "run", {"--epochs=1", flag}));
    const auto status = child.wait(kTraining);
    CHECK((status == ExitStatus::exited(1) || status == ExitStatus::exited(2)));
    CHECK_THAT(child.err(), ContainsSubstring(message));
    CHECK(count_of("\n", child.err()) == 1);
    CHECK_FALSE(fs::exists(sam.dir.path() / "run"));
  }
}

TEST_CASE("sam: a picture that is damaged behind its header ends the run when it is first read", "[sam]") {
  const SamRun sam;
  const auto bad = copied_sample(sam, /*first_image_bytes=*/200);
  Child child(training("sam", 0, sam.dir.path() / "run", {"--epochs=1", "--data=" + bad.string()}));
  CHECK(child.wait(kTraining) == ExitStatus::exited(1));
  CHECK_THAT(child.err(), ContainsSubstring(first_image().filename().string() + ": is no PNG file"));
  CHECK(count_of("\n", child.err()) == 1);
  CHECK_FALSE(fs::exists(sam.dir.path() / "run/summary.json"));
}
