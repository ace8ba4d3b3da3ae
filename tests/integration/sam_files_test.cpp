// The task sam with models from files, by the real programs, beside the same model in this process.
#include <torch/types.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <ddprun/image/image_files.h>
#include <ddprun/serialize/safetensors.h>
#include "tests/integration/sam_job.h"
#include "tests/support/browser.h"
#include "tests/support/python.h"
#include "worker/sam/data/prompted_batch.h"
#include "worker/sam/data/segmentation_dataset.h"
#include "worker/sam/mask_loss.h"
#include "worker/sam/sam_model.h"
#include "worker/tasks/registry.h"

using namespace ddprun;
using ddprun::sam::read_sam;
using ddprun::sam::write_sam;
using namespace ddprun::test;

namespace {

const sam::SamProcessor kProcessor({.image_size = 64, .mask_size = 32});

/// A model of kTinySam with weights as large as trained ones, so that another seed means another loss.
sam::Sam tiny_sam(std::uint64_t seed) {
  torch::manual_seed(seed);
  sam::Sam model(sam::parse_sam_config(kTinySam, "tiny.json"));
  const torch::NoGradGuard no_grad;
  for (auto& weight : model->parameters())
    if (weight.dim() >= 2) weight.mul_(6);
  model->eval();
  return model;
}

/// Trains on one picture three times with the same points: all batches are alike, whatever their order.
struct OnePicture : SamRun {
  fs::path data = one_picture(), points = dir.path() / "points.csv";

  OnePicture() { std::ofstream(points) << "index,y,x,label\n0,162,91,1\n1,162,91,1\n2,162,91,1\n"; }

  std::vector<std::string> flags(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"--data=" + data.string(), "--points=" + points.string(),
                                    "--val-split=0.4", "--epochs=2"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  fs::path write(const sam::Sam& model) const {
    write_sam(dir.path() / "model", *model);
    return dir.path() / "model";
  }
  double first_loss(const std::string& out) const {
    return std::stod(values_of(dir.path() / out, "train_loss").front());
  }
  /// What a step's loss should be.
  double loss_of(sam::Sam model, sam::MaskLoss loss = sam::MaskLoss::kDice) const {
    const torch::NoGradGuard no_grad;
    const sam::SegmentationDataset set(data, kProcessor, {.points = points});
    const auto batch = set.get_batch({0, 1});
    const auto output = model->forward(
        batch.input, {.points = sam::points_of(batch), .labels = sam::point_labels_of(batch)}, false);
    return sam::mask_loss(loss, output.masks.squeeze(1), batch.target).mean().item<double>();
  }
};

/// A picture that is wider than high, with something to see.
image::Image wide_picture() {
  auto picture = image::make_image(90, 50, 3);
  for (int y = 0; y < 50; ++y)
    for (int x = 0; x < 90; ++x)
      for (int c = 0; c < 3; ++c)
        picture.pixel(x, y)[c] = static_cast<std::uint8_t>((x / 9 + y / 7) % 3 * 80 + 10 * c + x % 7);
  return picture;
}

/// The mask of points, x and y of each: what is meant and what is not.
torch::Tensor mask_of(sam::Sam model, const image::Image& picture, const std::vector<double>& points,
                      const std::vector<std::int64_t>& labels = {1, 0}) {
  const torch::NoGradGuard no_grad;
  const sam::ImageSize size{picture.height, picture.width};
  const auto framed = kProcessor.points(torch::tensor(points).view({-1, 2}), size);
  const sam::SamPrompts prompts{.points = framed.to(torch::kFloat).view({1, 1, -1, 2}),
                                .labels = torch::tensor(labels).view({1, 1, -1})};
  const auto output = model->forward(kProcessor.pixel_values(picture).unsqueeze(0), prompts, false);
  return kProcessor.mask_logits(output.masks[0][0][0], size) > 0;
}

/// The highest of the lines of epochs that a run has printed so far.
double best_dice_in(const std::string& output) {
  const std::string name = " val_dice ";
  double best = 0;
  for (auto at = output.find(name); at != std::string::npos; at = output.find(name, at + 1))
    best = std::max(best, std::strtod(output.c_str() + at + name.size(), nullptr));
  return best;
}

}  // namespace

TEST_CASE("sam starts from a model's folder or its file, and leaves another of the same shape", "[sam]") {
  const OnePicture sam;
  const auto model = tiny_sam(11);
  const auto from = sam.write(model);
  const auto given = from / GENERATE(as<std::string>(), "", "model.safetensors");
  sam.run(1, "run", sam.flags({"--checkpoint=" + given.string(), "--max-steps=2", "--loss=dice_bce"}));
  const auto loss = [&](const sam::Sam& of) { return sam.loss_of(of, sam::MaskLoss::kDiceBce); };
  CHECK(sam.first_loss("run") == Approx(loss(model)).epsilon(1e-5));
  CHECK(std::abs(loss(tiny_sam(0)) - loss(model)) > 1e-3);
  const auto best = sam.dir.path() / "run/best";
  CHECK(read_file(best / "config.json") == read_file(from / "config.json"));
  CHECK(read_file(best / "model.safetensors") != read_file(from / "model.safetensors"));
}

TEST_CASE("sam trains what transformers saved, and transformers reads what is left", "[sam]") {
  const OnePicture sam;
  std::string flags;
  for (const auto& flag :
       sam.flags({"--checkpoint=theirs", "--out=run", "--max-steps=2", "--no-tensorboard"}))
    flags += ", '" + flag + "'";
  check_python(sam.dir.path(), "transformers",
               R"(
import json, os, subprocess, torch
from transformers import SamConfig, SamModel
torch.manual_seed(5)
theirs = SamModel(SamConfig(**json.load(open("tiny.json"))))
theirs.save_pretrained("theirs")
subprocess.run([')" +
                   std::string(WORKER_PROGRAM) + R"(', 'sam')" + flags + R"(], check=True,
               stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
ours, info = SamModel.from_pretrained("run/best", output_loading_info=True)
assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
before, after = theirs.state_dict(), ours.state_dict()
assert before.keys() == after.keys()
changed = [name for name in after if not torch.equal(before[name], after[name])]
for part in ("vision_encoder.", "prompt_encoder.point_embed.", "mask_decoder."):
    assert any(name.startswith(part) for name in changed), changed
furthest = max((after[name] - before[name]).abs().max() for name in changed)
assert furthest < 5e-4, furthest  # two steps of a rate that begins at a hundredth of 1e-4: theirs, not a new model
)");
}

TEST_CASE("sam: a checkpoint that does not fit is one line, and no run begins", "[sam]") {
  const OnePicture sam;
  const auto from = sam.write(tiny_sam(11));
  const auto path = from / "model.safetensors";
  const auto whole = serialize::read_safetensors(path).tensors;
  const std::string name = "vision_encoder.pos_embed";
  for (const bool is_missing : {true, false}) {
    auto tensors = whole;
    std::erase_if(tensors, [&](const auto& item) { return is_missing && item.first == name; });
    for (auto& [key, tensor] : tensors)
      if (key == name) tensor = torch::zeros({1, 8, 7, 32});
    serialize::write_safetensors(path, tensors);
    Child child(training("sam", 0, sam.dir.path() / "run", sam.flags({"--checkpoint=" + from.string()})));
    CHECK(child.wait(kTraining) == ExitStatus::exited(1));
    CHECK_THAT(child.err(), ContainsSubstring(path.string() + ": its tensors do not fit the model: ") &&
                                ContainsSubstring(is_missing ? "missing \"" + name + "\" [1, 8, 8, 32]"
                                                             : "\"" + name + "\" [1, 8, 7, 32], expected"));
    CHECK(count_of("\n", child.err()) == 1);
    CHECK_FALSE(fs::exists(sam.dir.path() / "run"));
  }
}

TEST_CASE("sam: --predict writes the model's mask at the picture's size, 0 and 255", "[sam]") {
  const SamRun sam;
  const auto picture = wide_picture();
  image::write_png(sam.dir.path() / "wide.png", picture);
  auto model = tiny_sam(11);
  auto expected = mask_of(model, picture, {70, 12, 15, 40});
  const auto part = [&] { return expected.to(torch::kDouble).mean().item<double>(); };
  for (std::uint64_t seed = 12; seed < 40 && (part() < 0.2 || part() > 0.8); ++seed) {
    model = tiny_sam(seed);
    expected = mask_of(model, picture, {70, 12, 15, 40});
  }
  REQUIRE((part() > 0.2 && part() < 0.8));
  REQUIRE_FALSE(mask_of(model, picture, {12, 70, 40, 15}).equal(expected));  // x and y changed places
  write_sam(sam.dir.path() / "model", *model);

  auto child = start_worker({"sam", "--predict", (sam.dir.path() / "wide.png").string(), "--point", "70,12",
                             "--point=15,40,0", "--checkpoint", (sam.dir.path() / "model").string(),
                             "--mask-out", (sam.dir.path() / "mask.png").string()});
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  CHECK_THAT(child.out(), ContainsSubstring("mask.png: " + std::to_string(expected.sum().item<int>()) +
                                            " of 4500 pixels"));
  const auto written = image::read_png(sam.dir.path() / "mask.png");
  REQUIRE((written.width == 90 && written.height == 50 && written.channels == 1));
  const auto bytes = expected.to(torch::kUInt8).mul(255);
  CHECK(std::equal(written.bytes.begin(), written.bytes.end(), bytes.const_data_ptr<std::uint8_t>()));
  const auto overlay = image::read_png(sam.dir.path() / "mask.overlay.png");
  CHECK((overlay.width == 630 && overlay.height == 350 && overlay.channels == 4));
  const auto* point = overlay.pixel(70 * 7 + 3, 12 * 7 + 3);
  CHECK((point[0] == 230 && point[1] == 20 && point[2] == 20));

  check_python(sam.dir.path(), "transformers", R"(
import numpy as np, torch
from PIL import Image
from transformers import SamModel, SamProcessor
processor = SamProcessor.from_pretrained("model")
inputs = processor(Image.open("wide.png"), input_points=[[[70, 12], [15, 40]]], input_labels=[[1, 0]], return_tensors="pt")
with torch.no_grad():
    logits = SamModel.from_pretrained("model")(**inputs, multimask_output=False).pred_masks
masks = processor.post_process_masks(logits, inputs["original_sizes"], inputs["reshaped_input_sizes"])
expected, found = masks[0][0, 0].numpy(), np.array(Image.open("mask.png")) == 255
assert (expected != found).mean() < 0.01, (expected != found).mean()  # inputs may differ by 1 in 255
)");
}

TEST_CASE("sam: --predict --page-out writes a page that shows the mask of a click, without a server",
          "[sam]") {
  const SamRun sam;
  const auto picture = wide_picture();
  image::write_png(sam.dir.path() / "wide<b>.png", picture);
  // A click in the middle of cell 24, 4 of the grid of 32 x 18.
  const std::vector<double> click = {24.5 * 90 / 32 - 0.5, 4.5 * 50 / 18 - 0.5};
  auto model = tiny_sam(11);
  const auto part = [&] {
    return mask_of(model, picture, click, {1}).to(torch::kDouble).mean().item<double>();
  };
  for (std::uint64_t seed = 12; seed < 40 && (part() < 0.2 || part() > 0.8); ++seed) model = tiny_sam(seed);
  REQUIRE((part() > 0.2 && part() < 0.8));
  write_sam(sam.dir.path() / "model", *model);
  auto child = start_worker({"sam", "--predict", (sam.dir.path() / "wide<b>.png").string(), "--checkpoint",
                             (sam.dir.path() / "model").string(),
                             "--page-out=" + (sam.dir.path() / "page.html").string()});
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  const auto page = read_file(sam.dir.path() / "page.html");
  CHECK_THAT(page, ContainsSubstring("<h1>wide&lt;b&gt;.png</h1>"));
  auto clicked = page;
  clicked.insert(clicked.find("</body>"), R"(<script>addEventListener("load", () => {
show(24.5 / 32, 4.5 / 18);
const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
document.title = data.some(value => value > 0) ? said.textContent : "nothing is drawn";
});</script>)");
  const auto found = test::shown_in_browser(clicked, {500}).at(0);
  CHECK(found["title"] == "The mask covers " + formatted("%.1f", 100 * part()) + " % of the picture.");
  CHECK(found["requests"] == 0);
}

TEST_CASE("sam trains with the loss that --loss names", "[sam]") {
  const OnePicture sam;
  const auto model = tiny_sam(11);
  const auto from = sam.write(model).string();
  std::vector<double> losses;
  for (const std::string loss : {"dice", "dice_focal", "dice_bce"}) {
    CAPTURE(loss);
    sam.run(2, loss,
            sam.flags({"--checkpoint=" + from, "--loss=" + loss, "--max-steps=1", "--batch-size=1"}));
    losses.push_back(sam.first_loss(loss));
    CHECK(losses.back() == Approx(sam.loss_of(model, sam::parse_mask_loss(loss))).epsilon(1e-4));
  }
  CHECK((losses[1] > losses[0] && losses[2] > losses[0]));
}

TEST_CASE("sam: --freeze=prompt leaves the prompt encoder as it was", "[sam]") {
  const OnePicture sam;
  const auto before = tiny_sam(11);
  const auto from = sam.write(before).string();
  for (const std::string freeze : {"none", "prompt"}) {
    CAPTURE(freeze);
    sam.run(1, freeze, sam.flags({"--checkpoint=" + from, "--freeze=" + freeze, "--max-steps=1"}));
    const auto after = read_sam(sam.dir.path() / freeze / "best");
    const auto changed = [&](const std::string& name) {
      return !after->named_parameters()[name].equal(before->named_parameters()[name]);
    };
    CHECK(changed("prompt_encoder.point_embed.1.weight") == (freeze == "none"));
    CHECK(changed("vision_encoder.pos_embed"));
    CHECK(changed("mask_decoder.mask_tokens.weight"));
  }
}

TEST_CASE("sam: points of a NumPy file are those of a CSV", "[sam]") {
  const OnePicture sam;
  sam.run(1, "csv", sam.flags({"--max-steps=2"}));
  const auto points = sam.dir.path() / "points.npy";
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 3), }";
  header.resize(117, ' ');
  std::string bytes = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + "\n";
  for (const float value : {0.F, 162.F, 91.F, 1.F, 162.F, 91.F, 2.F, 162.F, 91.F}) {
    char number[4];
    std::memcpy(number, &value, 4);
    bytes.append(number, 4);
  }
  write_file_atomic(points, bytes);
  sam.run(1, "npy", sam.flags({"--max-steps=2", "--points=" + points.string()}));
  const auto losses = values_of(sam.dir.path() / "csv", "train_loss");
  CHECK(losses.size() == 2);
  CHECK(values_of(sam.dir.path() / "npy", "train_loss") == losses);
}

namespace {

/// The Dice of a disc of the best radius around the point of each prompt, on average.
double dice_of_disc(const data::Dataset& set) {
  double best = 0;
  for (double radius = 2; radius <= 40; ++radius) {
    double sum = 0;
    std::int64_t count = 0;
    for (std::int64_t index = 0; index < set.size(); ++index) {
      const auto batch = set.get_batch({index});
      const auto& truths = sam::truths_of(batch, 0);
      const auto points = sam::points_of(batch)[0].select(1, 0) *
                          (static_cast<double>(truths.size(2)) / kProcessor.options().image_size);
      for (std::int64_t prompt = 0; prompt < truths.size(0); ++prompt, ++count) {
        const auto y = torch::arange(truths.size(1)).unsqueeze(1) - points[prompt][1];
        const auto x = torch::arange(truths.size(2)).unsqueeze(0) - points[prompt][0];
        sum += sam::dice_score(y * y + x * x <= radius * radius, truths[prompt]).item<double>();
      }
    }
    best = std::max(best, sum / static_cast<double>(count));
  }
  return best;
}

}  // namespace

TEST_CASE("a new sam learns by its defaults from the sample, on one rank and on two: it beats any disc",
          "[sam][.slow]") {
  worker::Config config;
  config.task = "sam";
  worker::entry_of(config.task).set_defaults(config);
  const auto prompts = static_cast<int>(config.sam.prompts_per_image);
  const auto all = std::make_shared<sam::SegmentationDataset>(
      sample(), kProcessor, sam::SegmentationDataset::Options{.prompts_per_image = prompts});
  const auto disc =
      dice_of_disc(*worker::split_for_validation(all, all->with_fixed_points(), config).validation);
  for (const int ranks : {0, 2}) {
    const TempDir dir;
    auto command = training("sam", ranks, dir.path() / "run", {"--no-report", "--no-tensorboard"});
    command.env["OMP_NUM_THREADS"] = ranks == 0 ? "2" : "1";
    Child child(command);
    // On two cores, at most three minutes until the model is worth something.
    if (ranks == 2) CHECK(wait_until([&] { return best_dice_in(child.out()) > disc; }, 180s));
    REQUIRE(child.wait(5 * kTraining) == ExitStatus::exited(0));
    double best = 0;
    for (const auto& value : values_of(dir.path() / "run", "val_dice"))
      best = std::max(best, std::stod(value));
    CAPTURE(ranks, disc);  // with the radius that is best on these very images
    CHECK(best > disc + 0.05);
    CHECK(std::stod(values_of(dir.path() / "run", "train_dice").back()) > 0.5);
  }
}
