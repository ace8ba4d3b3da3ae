// The settings of the task sam, whose defaults depend on what is trained.
#include <nlohmann/json.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"
#include "worker/commands/commands.h"
#include "worker/config/config.h"
#include "worker/tasks/registry.h"

using namespace ddprun;
using namespace ddprun::worker;

namespace {

Config parse_sam(std::vector<std::string> words) {
  words.insert(words.begin(), {"worker", "sam"});
  std::vector<const char*> argv;
  for (const auto& word : words) argv.push_back(word.c_str());
  return parse_config(static_cast<int>(argv.size()), argv.data(), all_tasks(), all_commands());
}

nlohmann::json settings_of(const std::vector<std::string>& words) {
  return nlohmann::json::parse(to_json(parse_sam(words)));
}

}  // namespace

TEST_CASE("sam's defaults are those of a new model, or of one of --checkpoint", "[config]") {
  const auto fresh = settings_of({}), released = settings_of({"--checkpoint=sam-vit-base"});
  const std::vector<std::pair<const char*, nlohmann::json>> of_both = {
      {"loss", "dice"},
      {"freeze", "none"},
      {"gradient_checkpointing", false},
      {"embedding_cache", nullptr},
      {"points", nullptr},
      {"points_per_image", 1},
      {"optimizer", "adamw"},
      {"clip_norm", 1.0},
      {"precision", "32"},
      {"checkpoint_name", "sam-{epoch:02d}-{val_dice:.4f}"},
      {"save_top_k", 3},
      {"monitor", "val_dice"}};
  for (const auto& [key, value] : of_both) {
    CAPTURE(key);
    CHECK(fresh.at(key) == value);
    CHECK(released.at(key) == value);
  }
  const std::vector<std::tuple<const char*, nlohmann::json, nlohmann::json>> of_each = {
      {"architecture", "small", nullptr},
      {"checkpoint", nullptr, "sam-vit-base"},
      {"augment", true, true},
      {"val_split", 0.25, 0.1},
      {"epochs", 400, 20},
      {"batch_size", 2, 4},
      {"lr", 5e-4, 1e-4},
      {"lr_schedule", "cosine", "none"},
      {"ema", 0.98, 0},
      {"patience", 150, 10},
      {"prompts_per_image", 8, 1},
      {"warmup_steps", 5, 50}};
  for (const auto& [key, of_fresh, of_released] : of_each) {
    CAPTURE(key);
    CHECK(fresh.at(key) == of_fresh);
    CHECK(released.at(key) == of_released);
  }
}

TEST_CASE("what is given wins over sam's defaults, wherever it is given", "[config]") {
  const TempDir dir;
  const auto file = (dir.path() / "sam.toml").string();
  write_file_atomic(file, "[optim]\nlr = 0.5\n[model]\ncheckpoint = \"sam-vit-base\"\n");
  const auto from_file = settings_of({"--config", file});
  CHECK(from_file["lr"] == 0.5);
  CHECK(from_file["warmup_steps"] == 50);
  const auto from_both = settings_of({"--config", file, "--lr=0.25", "--warmup-steps=5"});
  CHECK(from_both["lr"] == 0.25);
  CHECK(from_both["warmup_steps"] == 5);
  CHECK(settings_of({"--lr=1e-4", "--warmup-steps=50"})["lr"] == 1e-4);
}

TEST_CASE("what --checkpoint or --points would make idle is refused by name", "[config]") {
  const auto [words, second] = GENERATE(table<std::vector<std::string>, std::string>(
      {{{"--checkpoint=a", "--architecture=small"}, "architecture"},
       {{"--checkpoint=a", "--image-size=64"}, "image-size"},
       {{"--checkpoint=a", "--init-weights=b"}, "init-weights"},
       {{"--points=a", "--points-per-image=1"}, "points-per-image"},
       {{"--points=a", "--prompts-per-image=2"}, "prompts-per-image"}}));
  const auto first = words[0].substr(0, words[0].find('='));
  CHECK_THROWS_AS(parse_sam(words), UsageError);
  CHECK_THROWS_WITH(parse_sam(words), first + " and --" + second + ": expected at most one of them");
  CHECK_NOTHROW(parse_sam({words[0]}));
  CHECK_NOTHROW(parse_sam({words[1]}));
}

TEST_CASE("a sam's config.toml repeats the run, of a checkpoint and with points too", "[config]") {
  const TempDir dir;
  const auto file = (dir.path() / "config.toml").string();
  const auto words =
      GENERATE(std::vector<std::string>{}, std::vector<std::string>{"--checkpoint=a"},
               std::vector<std::string>{"--points=a"},
               std::vector<std::string>{"--architecture=base", "--points-per-image=3", "--lr=1"});
  const auto config = parse_sam(words);
  write_file_atomic(file, to_toml(config));
  CHECK(to_json(parse_sam({"--config", file})) == to_json(config));
}
