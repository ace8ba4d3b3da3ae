// What the task sam refuses, by the real programs: one line, nothing half-written.
#include <ddprun/image/image_files.h>
#include "tests/integration/sam_job.h"
#include "tests/worker/sam/data/segmentation_folder.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// A copy of the sample, to be damaged.
fs::path copied_sample(const SamRun& sam) {
  const auto copy = sam.dir.path() / "bad";
  fs::copy(sample(), copy, fs::copy_options::recursive);
  return copy;
}

/// A copy with its first image cut to that many bytes.
fs::path cut_sample(const SamRun& sam, std::uintmax_t first_image_bytes) {
  const auto copy = copied_sample(sam);
  fs::resize_file(copy / "images" / first_image().filename(), first_image_bytes);
  return copy;
}

bool is_refusal(const ExitStatus& status) {
  return status == ExitStatus::exited(1) || status == ExitStatus::exited(2);
}

}  // namespace

TEST_CASE("sam refuses what does not fit in one line, before a run begins", "[sam]") {
  const SamRun sam;
  const auto bad = cut_sample(sam, /*first_image_bytes=*/20);  // its header is cut
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"--data=" + bad.string(), first_image().filename().string()},
      {"--points=" + (sam.dir.path() / "tiny.json").string(), "tiny.json"},
      {"--checkpoint=" + sample().string(), "nuclei-sample"},
      {"--architecture=enormous", "expected small, base, large, huge or a config.json, got 'enormous'"},
      {"--image-size=100",
       "--image-size: vision_config.image_size: expected a multiple of patch_size (8), got 100"},
      {"--loss=mse", "expected dice, dice_focal or dice_bce, got 'mse'"},
      {"--embedding-cache=x", "--embedding-cache: add --freeze=encoder"}};
  for (const auto& [flag, message] : refused) {
    CAPTURE(flag);
    Child child(training("sam", 0, sam.dir.path() / "run", {"--epochs=1", flag}));
    CHECK(is_refusal(child.wait(kTraining)));
    CHECK_THAT(child.err(), ContainsSubstring(message));
    CHECK(count_of("\n", child.err()) == 1);
    CHECK_FALSE(fs::exists(sam.dir.path() / "run"));
  }
}

TEST_CASE("sam: bad images, masks and points end both ranks with one line each, and nothing is left",
          "[sam]") {
  const SamRun sam;
  const auto data = copied_sample(sam);
  const auto name = first_image().filename();
  std::vector<std::string> flags = {"--data=" + data.string(), "--epochs=1"};
  std::string message;
  bool before_the_run = true;
  SECTION("a mask of another size") {
    image::write_png(data / "masks" / name, image::make_image(255, 256, 1, 1));
    message = "has 255 x 256 pixels, expected 256 x 256 pixels, the size of its image";
  }
  SECTION("a point outside") {
    const auto points = sam.dir.path() / "points.csv";
    std::ofstream(points) << "index,y,x\n0,5,5\n0,5,256\n";
    flags.push_back("--points=" + points.string());
    message = "points.csv: line 3: expected a point inside image 0";
  }
  SECTION("an image of too many pixels") {
    write_file_atomic(data / "images" / name, huge_png(30000, 30000));
    message = "it has too many pixels, 30000 x 30000, expected at most 67108864 in all";
  }
  SECTION("an empty mask") {
    image::write_png(data / "masks" / name, image::make_image(256, 256, 1));
    message = "is empty: all pixels are 0, expected at least one instance";
    before_the_run = false;
  }
  Child child(sam.command(2, "run", flags));
  CHECK(is_refusal(child.wait(kTraining)));
  check_nothing_left(child);
  CAPTURE(child.err());
  const auto report = child.err().find(" FAILED");  // one line, for a usage error
  REQUIRE(report != std::string::npos);
  CHECK(child.err().find(message, report) != std::string::npos);
  CHECK(count_of("worker: error: ", child.err().substr(0, report)) <= 2);
  if (before_the_run) CHECK_FALSE(fs::exists(sam.dir.path() / "run"));
  for (const char* file : {"summary.json", "best"}) CHECK_FALSE(fs::exists(sam.dir.path() / "run" / file));
}

TEST_CASE("sam: a picture that is damaged behind its header ends the run when it is first read", "[sam]") {
  const SamRun sam;
  const auto bad = cut_sample(sam, /*first_image_bytes=*/200);
  Child child(training("sam", 0, sam.dir.path() / "run", {"--epochs=1", "--data=" + bad.string()}));
  CHECK(child.wait(kTraining) == ExitStatus::exited(1));
  CHECK_THAT(child.err(),
             ContainsSubstring(first_image().filename().string() + ": is not a readable PNG file"));
  CHECK(count_of("\n", child.err()) == 1);
  CHECK_FALSE(fs::exists(sam.dir.path() / "run/summary.json"));
}

TEST_CASE("sam: --predict refuses what is wrong in one line, the model last", "[sam]") {
  const TempDir dir;
  const auto nowhere = "--checkpoint=" + (dir.path() / "nowhere").string();
  const auto out = "--mask-out=" + (dir.path() / "none.png").string();
  const auto image = "--predict=" + first_image().string();
  const std::vector<std::pair<std::vector<std::string>, std::string>> refused = {
      {{image, "--point=9999,1", nowhere, out}, "expected a point inside"},
      {{image, "--point=1", nowhere, out}, "--point"},
      {{"--predict=none.jpg", "--point=1,1", nowhere, out}, "none.jpg"},
      {{image, "--point=1,1", nowhere, "--mask-out=" + (dir.path() / "no/none.png").string()},
       "no/none.png: cannot be written: No such file or directory"},
      {{image, "--point=1,1", nowhere, out}, "nowhere"},
      {{image, "--point=1,1", out}, "--checkpoint is missing"}};
  for (auto [words, message] : refused) {
    CAPTURE(message);
    words.insert(words.begin(), "sam");
    auto failing = start_worker(words);
    CHECK(is_refusal(failing.wait(kTraining)));
    CHECK_THAT(failing.err(), ContainsSubstring(message));
    CHECK(count_of("\n", failing.err()) == 1);
    CHECK_FALSE(fs::exists(dir.path() / "none.png"));
  }
}
