// The task sam, by the real programs: a small model on the images that come with them.
#include <ddprun/image/image_files.h>
#include "tests/integration/sam_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// A row's for each validation image.
std::vector<double> dice_in(const image::Image& picture) {
  std::vector<double> dice;
  for (const auto& caption : picture.captions)
    if (const std::string before = "Predicted Mask, Dice "; caption.text.starts_with(before))
      dice.push_back(std::stod(caption.text.substr(before.size())));
  return dice;
}

}  // namespace

TEST_CASE("sam trains on two ranks, on the images that come with the programs", "[sam]") {
  const SamRun sam;
  sam.run(2, "run", {"--epochs=3", "--val-split=0.25", "--prompts-per-image=1"});
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
  const auto dice = dice_in(picture);  // of three validation images, of which rank 0 has two
  REQUIRE(dice.size() == 3);
  CHECK(std::ranges::is_sorted(dice));
  CHECK((dice[0] + dice[1] + dice[2]) / 3 == Approx(summary["val_dice"].get<double>()).margin(2e-4));
  CHECK(image::read_png(out / "figures/training_samples.png").width == picture.width);
  CHECK_THAT(summary["best_checkpoint"].get<std::string>(), ContainsSubstring("sam-epoch=0"));
  CHECK_THAT(read_file(out / "report.html"), ContainsSubstring("val_dice") &&
                                                 ContainsSubstring("title=\"epoch 3\"") &&
                                                 ContainsSubstring("title=\"at the end\""));
  for (const char* name : {"config.json", "model.safetensors", "preprocessor_config.json"})
    CHECK(fs::file_size(out / "best" / name) > 0);
  sam.run(2, "more", {"--epochs=1", "--val-split=0.6", "--prompts-per-image=1"});
  const auto worst = dice_in(image::read_png(sam.dir.path() / "more/figures/samples.png"));  // of seven
  CHECK(worst.size() == 5);
  CHECK(std::ranges::is_sorted(worst));
}

TEST_CASE("sam prints a line for each epoch", "[sam]") {
  const SamRun sam;
  Child child(sam.command(2, "run", {"--epochs=3", "--val-split=0.25"}));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  const auto text = child.out();
  for (const char* line : {"Epoch 1/3: train_loss ", "Epoch 2/3: train_loss ", "Epoch 3/3: train_loss "})
    CHECK(count_of(line, text) == 1);
  CHECK(count_of("Epoch ", text) == 3);
  CHECK(count_of(", val_loss ", text) >= 3);
  CHECK(count_of("Validation: ", text) <= 1);  // that of the best, at the end
}

TEST_CASE("sam: the metrics of three held-out images are the same on one rank and on two", "[sam]") {
  const SamRun sam;
  for (const int ranks : {1, 2})
    sam.run(ranks, std::to_string(ranks), {"--epochs=1", "--val-split=0.25", "--lr=1e-12"});
  for (const char* name : {"val_dice", "val_iou", "val_pixel_acc"}) {
    CAPTURE(name);
    const double one = read_summary(sam.dir.path() / "1")[name],
                 two = read_summary(sam.dir.path() / "2")[name];
    CHECK(two == Approx(one).epsilon(1e-4));  // an image more or less shifts them by more
    CHECK(one > 0);
  }
}

TEST_CASE("sam learns what a point means", "[sam]") {
  const SamRun sam;
  const auto data = sam.one_picture();  // each time with a point in another nucleus
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

TEST_CASE(
    "sam: a replicated run goes on sharded, and without --fsdp again, though no step uses some parameters",
    "[sam]") {
  const SamRun sam;
  const auto losses = [&](const std::string& name) {
    std::vector<double> all;
    for (const auto& value : values_of(sam.dir.path() / name, "train_loss")) all.push_back(std::stod(value));
    return all;
  };
  sam.run(2, "whole", {"--epochs=3"});
  sam.run(2, "parts", {"--epochs=1"});
  sam.run(2, "parts", {"--epochs=2", "--resume=auto", "--fsdp"});
  sam.run(2, "parts", {"--epochs=3", "--resume=auto", "--fsdp=false"});
  const auto whole = losses("whole"), parts = losses("parts");
  REQUIRE(parts.size() == whole.size());
  for (std::size_t step = 0; step < whole.size(); ++step)
    CHECK(parts[step] == Approx(whole[step]).margin(2e-3));
}

TEST_CASE("sam: sharded, recomputed and in 16 bits it learns as without them", "[sam]") {
  const SamRun sam;
  const auto losses = [&](const std::string& name, const std::vector<std::string>& flags) {
    Child child(sam.command(2, name, flags));
    const auto status = child.wait(kTraining);
    CAPTURE(name, child.err());
    REQUIRE(status == ExitStatus::exited(0));
    CHECK_THAT(child.err(), !ContainsSubstring("warning"));
    std::vector<double> all;
    for (const auto& value : values_of(sam.dir.path() / name, "train_loss")) all.push_back(std::stod(value));
    return all;
  };
  const auto plain = losses("plain", {"--epochs=6"});
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--epochs=6", "--gradient-checkpointing"},
        {"--epochs=6", "--fsdp", "--gradient-checkpointing", "--precision=bf16-mixed"}}) {
    const auto other = losses(std::to_string(flags.size()), flags);
    REQUIRE(other.size() == plain.size());
    for (std::size_t step = 0; step < plain.size(); ++step)
      CHECK(other[step] == Approx(plain[step]).margin(flags.size() == 2 ? 0 : 2e-3));
  }
  sam.run(2, "4",
          {"--epochs=7", "--fsdp", "--gradient-checkpointing", "--precision=bf16-mixed", "--resume=auto"});
  CHECK(values_of(sam.dir.path() / "4", "train_loss").size() > plain.size());
}

namespace {

/// When each file of a folder was written.
std::map<fs::path, fs::file_time_type> written(const fs::path& folder) {
  std::map<fs::path, fs::file_time_type> times;
  for (const auto& entry : fs::directory_iterator(folder)) times[entry.path()] = entry.last_write_time();
  return times;
}

}  // namespace

TEST_CASE("sam: what a frozen encoder gave is kept, and the losses are the same", "[sam]") {
  const SamRun sam;
  const auto cache = sam.dir.path() / "cache";
  const std::vector<std::string> flags = {"--epochs=2", "--freeze=encoder"};
  auto cached = flags;
  cached.push_back("--embedding-cache=" + cache.string());
  sam.run(2, "plain", flags);
  sam.run(2, "first", cached);
  const auto kept = written(cache);
  CHECK(kept.size() == 12);  // of each image one
  sam.run(2, "second", cached);
  CHECK(written(cache) == kept);  // read: what is not found is written
  const auto losses = values_of(sam.dir.path() / "plain", "train_loss");
  CHECK(losses.size() == 6);
  CHECK(values_of(sam.dir.path() / "first", "train_loss") == losses);
  CHECK(values_of(sam.dir.path() / "second", "train_loss") == losses);
  // Images that were encoded in other batches than the validation's: some CPUs then add up in another order.
  const auto dice = values_of(sam.dir.path() / "plain", "val_dice");
  REQUIRE(dice.size() == 2);
  for (std::size_t epoch = 0; epoch < dice.size(); ++epoch)
    CHECK(std::stod(values_of(sam.dir.path() / "second", "val_dice")[epoch]) ==
          Approx(std::stod(dice[epoch])).epsilon(1e-4));
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
  const auto kept = written(sam.dir.path() / "cache");
  sam.run(1, "trained", {"--epochs=1"});
  const auto resume = "--resume=" + (sam.dir.path() / "trained/checkpoints/last.pt").string();
  CHECK(run("resumed", {resume}, true) == run("plain", {resume}, false));
  const auto both = written(sam.dir.path() / "cache");
  CHECK(both.size() == 2 * kept.size());
  CHECK(std::includes(both.begin(), both.end(), kept.begin(), kept.end()));
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
  sam.run(2, "fsdp_recomputed", {"--max-steps=3", "--fsdp", "--gradient-checkpointing"});
  near("fsdp_recomputed", 1e-5);
}

TEST_CASE("sam: ranks with fewer batches validate the averages that are saved, and go on with them",
          "[sam]") {
  const SamRun sam;  // nine images to train on: one rank has a batch less; three that both ranks validate
  const bool by_default = GENERATE(false, true);
  CAPTURE(by_default);
  const auto run = [&](const std::string& out, const std::string& epochs, const std::string& more = "") {
    auto command = sam.command(2, out, {"--join", "--monitor=val_loss", "--val-split=0.25", epochs});
    REQUIRE(std::erase(command.argv, "--ema=0") == 1);
    if (!by_default) command.argv.push_back("--ema=0.8");
    if (!more.empty()) command.argv.push_back(more);
    Child child(command);
    const auto status = child.wait(kTraining);
    CAPTURE(child.err());
    REQUIRE(status == ExitStatus::exited(0));
  };
  run("whole", "--epochs=4");
  CHECK_THAT(read_file(sam.dir.path() / "whole/config.toml"),
             ContainsSubstring(by_default ? "\nema = 0.98\n" : "\nema = 0.8\n"));
  const auto best = sam.dir.path() / "whole/best";
  if (!by_default) {
    run("parts", "--epochs=2");
    run("parts", "--epochs=4", "--resume=auto");
    CHECK(values_of(sam.dir.path() / "parts", "train_loss") ==
          values_of(sam.dir.path() / "whole", "train_loss"));
    CHECK(read_file(sam.dir.path() / "parts/best/model.safetensors") ==
          read_file(best / "model.safetensors"));
  }
  sam.run(1, "saved",
          {"--checkpoint=" + best.string(), "--prompts-per-image=8", "--epochs=1", "--lr=1e-12",
           "--val-split=0.25"});
  const auto validated = [&](const std::string& out) {
    const auto losses = values_of(sam.dir.path() / out, "val_loss");
    return std::stod(*std::ranges::min_element(losses, {}, [](const auto& text) { return std::stod(text); }));
  };
  const double whole = validated("whole"), saved = validated("saved");
  CHECK(saved == Approx(whole).epsilon(1e-6));  // a step more or less in the averages is 2e-5
}

TEST_CASE("worker export writes the folder of a SAM from its checkpoint, and of nothing else", "[sam]") {
  const SamRun sam;
  sam.run(1, "run", {"--max-steps=2", "--save-top-k=1", "--ema=0.5"});
  const auto run = sam.dir.path() / "run";
  fs::remove(sam.dir.path() / "tiny.json");  // the checkpoint knows its model's shape
  const auto file_of = [&](const char* folder, const char* name) { return read_file(run / folder / name); };
  const auto write = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"export", read_summary(run)["best_checkpoint"].get<std::string>()});
    auto child = start_worker(words);
    CAPTURE(child.err());
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  };
  write({(run / "sam-0.83").string(), "--ema"});  // a folder's name may have a dot
  for (const char* name : {"config.json", "model.safetensors", "preprocessor_config.json"})
    CHECK(file_of("sam-0.83", name) == file_of("best", name));  // the averages, which were validated
  fs::create_directory(run / "there.pt");
  for (const char* folder : {"plain", "plain.pt/", "there.pt"}) {
    CAPTURE(folder);
    write({(run / folder).string()});
    CHECK(file_of(folder, "config.json") == file_of("best", "config.json"));
    CHECK(file_of(folder, "model.safetensors") != file_of("best", "model.safetensors"));
  }

  Child linear(training("linear", 0, sam.dir.path() / "linear", {"--epochs=1"}));
  REQUIRE(linear.wait(kTraining) == ExitStatus::exited(0));
  auto refused = start_worker(
      {"export", (sam.dir.path() / "linear/checkpoints/last.pt").string(), (run / "linear").string()});
  CHECK(refused.wait(kTraining) == ExitStatus::exited(2));
  CHECK_THAT(refused.err(), ContainsSubstring("expected OUT to end in .pt, .safetensors or .ckpt") &&
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
  CHECK(fs::exists(best / "left.txt"));  // which no run has written
  sam.run(1, "other", {"--max-steps=1"});
  const auto other = sam.dir.path() / "other/best";
  fs::remove_all(other);
  std::ofstream(other) << "in the way";
  Child child(sam.command(1, "other", {"--max-steps=2", "--resume=auto"}));
  CHECK(child.wait(kTraining) == ExitStatus::exited(0));
  CHECK_THAT(child.err(),
             ContainsSubstring("no model in") && ContainsSubstring("worker export creates it from"));
}
