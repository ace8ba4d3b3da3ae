// worker TASK --predict: against what --eval finds, and against Python.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <list>
#include <nlohmann/json.hpp>

#include <ddprun/data/dataset_files.h>
#include <ddprun/image/image_files.h>
#include <ddprun/serialize/safetensors.h>
#include "tests/integration/cifar10_files.h"
#include "tests/integration/training_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

Child run_worker(const std::vector<std::string>& words) {
  Command command;
  command.argv = {worker_program()};
  command.argv.insert(command.argv.end(), words.begin(), words.end());
  return Child(command);
}

/// The data set's pictures as files 0000.png, 0001.png, ...
void write_pictures(const data::Images& images, std::int64_t count, const fs::path& folder) {
  fs::create_directories(folder);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto pixels_HWC = images.images_NCHW[i].permute({1, 2, 0}).contiguous();
    auto picture =
        image::make_image(static_cast<int>(pixels_HWC.size(1)), static_cast<int>(pixels_HWC.size(0)),
                          static_cast<int>(pixels_HWC.size(2)));
    std::copy_n(pixels_HWC.const_data_ptr<std::uint8_t>(), pixels_HWC.numel(), picture.bytes.begin());
    auto number = std::to_string(i);
    image::write_png(folder / (number.insert(0, 4 - number.size(), '0') + ".png"), picture);
  }
}

nlohmann::json predictions_in(const fs::path& folder) {
  return nlohmann::json::parse(read_file(folder / "predictions.json"))["predictions"];
}

/// How many of the predictions are the data set's labels.
std::int64_t right_ones(const nlohmann::json& predictions, const torch::Tensor& labels) {
  std::int64_t right = 0;
  for (std::size_t i = 0; i < predictions.size(); ++i)
    right +=
        predictions[i]["classes"][0]["index"] == labels[static_cast<std::int64_t>(i)].item<std::int64_t>()
            ? 1
            : 0;
  return right;
}

}  // namespace

TEST_CASE("mnist's predicted classes of a data set's pictures are those of --eval and of Python",
          "[predict]") {
  need_fashion_mnist();
  const TempDir dir;
  const auto run = dir.path() / "run", out = dir.path() / "predictions";
  Child trained(mnist(0, run, small({"--limit-test=100"})));
  REQUIRE(trained.wait(kTraining) == ExitStatus::exited(0));
  const auto checkpoint = (run / "checkpoints/last.pt").string();
  const auto images = data::read_mnist(fashion_mnist(), data::Part::kTest, 100);
  write_pictures(images, 100, dir.path() / "pictures");

  auto child = run_worker({"mnist", "--predict", (dir.path() / "pictures").string(), "--checkpoint",
                           run.string(), "--out", out.string(), "--batch-size=7", "--data=fashion-mnist"});
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  const auto predictions = predictions_in(out);
  REQUIRE(predictions.size() == 100);
  auto evaluated = run_worker({"mnist", "--eval", checkpoint, "--data=fashion-mnist", "--limit-test=100",
                               "--out", (dir.path() / "evaluated").string()});
  REQUIRE(evaluated.wait(kTraining) == ExitStatus::exited(0));
  CHECK_THAT(
      evaluated.out(),
      ContainsSubstring("Accuracy: " + std::to_string(right_ones(predictions, images.labels_N)) + "/100"));
  double sum = 0;
  for (const auto& one : predictions[0]["classes"]) sum += one["probability"].get<double>();
  CHECK((predictions[0]["classes"].size() == 3 && sum > 0.3 && sum < 1 + 1e-5));
  CHECK(predictions[0]["adapted"] == "");
  CHECK_THAT(child.out(), ContainsSubstring("PICTURE ") && ContainsSubstring("0099.png"));
  const auto shown = image::read_png(out / "pictures/001_0000.png");
  CHECK((shown.width >= 224 && shown.height > 224));
  const auto bare = image::read_png(dir.path() / "pictures/0000.png");
  const auto& likeliest = predictions[0]["classes"][0];
  char percent[32];
  std::snprintf(percent, sizeof percent, " %.1f %%", 100 * likeliest["probability"].get<double>());
  CHECK((shown.bytes == image::with_label(bare, likeliest["class"].get<std::string>() + percent).bytes));
  CHECK((shown.bytes != image::with_label(bare, "").bytes));

  check_python(dir.path(), "PIL", R"(
import json, numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from PIL import Image
weights = torch.load("run/checkpoints/last.pt", weights_only=False)["model"]
def net(x):
    x = F.relu(F.conv2d(x, weights["conv1.weight"], weights["conv1.bias"]))
    x = F.max_pool2d(F.relu(F.conv2d(x, weights["conv2.weight"], weights["conv2.bias"])), 2)
    x = F.relu(F.linear(torch.flatten(x, 1), weights["fc1.weight"], weights["fc1.bias"]))
    return F.softmax(F.linear(x, weights["fc2.weight"], weights["fc2.bias"]), 1)
for i, one in enumerate(json.load(open("predictions/predictions.json"))["predictions"]):
    picture = np.array(Image.open(f"pictures/{i:04}.png"), dtype=np.float32) / 255
    top = net(torch.from_numpy((picture - 0.1307) / 0.3081)[None, None]).topk(3)
    for k, found in enumerate(one["classes"]):
        assert abs(top.values[0, k].item() - found["probability"]) < 1e-4, (i, k, top, found)
    assert top.indices[0, 0].item() == one["classes"][0]["index"] or top.values[0, 0] - top.values[0, 1] < 1e-4
)");

  // A picture that cannot be read does not keep the others from being predicted; of two ranks, one does it.
  const auto bad = (dir.path() / "pictures/0001.png").string();
  std::ofstream(bad) << "no picture";
  const auto again = dir.path() / "again";
  for (const bool overwrite : {false, true}) {
    auto words = training("mnist", 2, again,
                          {"--predict", (dir.path() / "pictures").string(), "--checkpoint", run.string(),
                           "--batch-size=3", "--data=fashion-mnist"});
    if (overwrite) words.argv.emplace_back("--overwrite");
    Child job(words);
    CHECK(job.wait(kTraining) == ExitStatus::exited(1));
    CAPTURE(job.out(), job.err());
    CHECK_THAT(job.err(), ContainsSubstring(bad + ": is neither a PNG nor a JPEG"));
    CHECK_THAT(job.err(), ContainsSubstring("1 of 100 pictures cannot be read"));
    CHECK(count_of("predictions: ", job.out()) == 1);
  }
  auto found = predictions_in(again);
  CHECK(found[1]["classes"].empty());
  CHECK_THAT(found[1]["error"].get<std::string>(), ContainsSubstring("0001.png"));
  CHECK(found[2]["classes"][0]["index"] == predictions[2]["classes"][0]["index"]);
  CHECK(found[99]["classes"][0]["index"] == predictions[99]["classes"][0]["index"]);
  CHECK_FALSE(fs::exists(again / "pictures/002_0001.png"));
}

TEST_CASE("cifar10's predicted classes of a data set's pictures are those of --eval", "[predict]") {
  const TempDir dir;
  write_cifar10(dir.path() / "data", 100, 30);
  const auto run = dir.path() / "run", out = dir.path() / "predictions";
  const auto data = "--data=" + (dir.path() / "data").string();
  Child trained(
      training("cifar10", 0, run, {data, "--epochs=1", "--batch-size=10", "--stem=cifar", "--val-split=0"}));
  REQUIRE(trained.wait(kTraining) == ExitStatus::exited(0));
  const auto checkpoint = (run / "checkpoints/last.ckpt").string();
  const auto images = data::read_cifar10(dir.path() / "data", data::Part::kTest);
  write_pictures(images, 30, dir.path() / "pictures");
  auto child = run_worker({"cifar10", "--predict=" + (dir.path() / "pictures").string(), "--checkpoint",
                           checkpoint, "--out", out.string()});
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  auto evaluated = run_worker({"cifar10", "--eval", checkpoint, data, "--stem=cifar", "--precision=32",
                               "--out", (dir.path() / "evaluated").string()});
  REQUIRE(evaluated.wait(kTraining) == ExitStatus::exited(0));
  CHECK_THAT(evaluated.out(),
             ContainsSubstring(
                 "Accuracy: " + std::to_string(right_ones(predictions_in(out), images.labels_N)) + "/30"));
  // A folder and a file; and the run brings the shape of its model.
  const auto both = dir.path() / "both";
  auto of_both = run_worker({"cifar10", "--predict", (dir.path() / "pictures").string(),
                             (dir.path() / "pictures/0000.png").string(), "--checkpoint", run.string(),
                             "--out", both.string()});
  REQUIRE(of_both.wait(kTraining) == ExitStatus::exited(0));
  CHECK(predictions_in(both).size() == 31);
  CHECK_FALSE(fs::is_empty(both / "pictures"));
  auto resumed = run_worker({"cifar10", "--resume", run.string(), data, "--epochs=2"});
  CHECK(resumed.wait(kTraining) == ExitStatus::exited(0));
}

TEST_CASE("linear's predicted probabilities are the sigmoid of the row's score", "[predict]") {
  const TempDir dir;
  serialize::write_safetensors(dir.path() / "model.safetensors",
                               {{"weight", torch::tensor({{2.0f, -1.0f}})}, {"bias", torch::tensor({0.5f})}});
  std::ofstream(dir.path() / "bare.csv") << "x,y\n1,0\n0,3\n";
  std::ofstream(dir.path() / "labelled.csv") << "0.25,1,1\n";
  const auto out = dir.path() / "out";
  auto child = run_worker({"linear", "--predict", (dir.path() / "bare.csv").string(),
                           (dir.path() / "labelled.csv").string(), "--checkpoint",
                           (dir.path() / "model.safetensors").string(), "--out", out.string()});
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  const auto predictions = predictions_in(out);
  REQUIRE(predictions.size() == 3);
  const double scores[] = {2.5, -2.5, 0};
  for (std::size_t i = 0; i < 3; ++i)
    for (const auto& one : predictions[i]["classes"]) {
      const double sign = one["class"] == "1" ? 1 : -1;
      CHECK(one["probability"].get<double>() == Approx(1 / (1 + std::exp(-sign * scores[i]))).margin(1e-6));
    }
  CHECK(predictions[0]["classes"][0]["class"] == "1");
  CHECK(predictions[1]["classes"][0]["class"] == "0");
  CHECK_THAT(child.out(), ContainsSubstring("bare.csv row 2      0      92.4 %"));
}

TEST_CASE("predictions of the same second have folders of their own", "[predict]") {
  const TempDir dir;
  serialize::write_safetensors(dir.path() / "model.safetensors",
                               {{"weight", torch::tensor({{2.0f, -1.0f}})}, {"bias", torch::tensor({0.5f})}});
  std::ofstream(dir.path() / "rows.csv") << "1,0\n";
  Command command;
  command.argv = {worker_program(), "linear", "--predict", "rows.csv", "--checkpoint", "model.safetensors"};
  command.in_child = [&dir] {
    if (::chdir(dir.path().c_str()) != 0) ::_exit(122);
  };
  std::list<Child> children;
  for (int i = 0; i < 6; ++i) children.emplace_back(command);
  for (auto& child : children) CHECK(child.wait(kTraining) == ExitStatus::exited(0));
  int folders = 0;
  for (const auto& entry : fs::directory_iterator(dir.path() / "predictions"))
    folders += fs::exists(entry.path() / "predictions.json") ? 1 : 0;
  CHECK(folders == 6);
}

TEST_CASE("an overwriting prediction removes the files of the earlier one, and nobody else's", "[predict]") {
  const TempDir dir;
  serialize::write_safetensors(dir.path() / "model.safetensors",
                               {{"weight", torch::tensor({{2.0f, -1.0f}})}, {"bias", torch::tensor({0.5f})}});
  std::ofstream(dir.path() / "rows.csv") << "1,0\n";
  const auto out = dir.path() / "out";
  fs::create_directories(out / "pictures");
  const auto predict = [&] {
    auto child =
        run_worker({"linear", "--predict", (dir.path() / "rows.csv").string(), "--checkpoint",
                    (dir.path() / "model.safetensors").string(), "--overwrite", "--out", out.string()});
    const auto status = child.wait(kTraining);
    return std::pair(status, child.err());
  };
  std::ofstream(out / "predictions.json") << "mine";
  CHECK(predict().first == ExitStatus::exited(2));
  CHECK(read_file(out / "predictions.json") == "mine");
  std::ofstream(out / "predictions.json") << R"({"predictions": [{"picture": "there/cat.jpg"}]})";
  std::ofstream(out / "pictures/1_cat.png") << "earlier";
  std::ofstream(out / "pictures/1_mine.png") << "mine";
  const auto refused = predict();
  CHECK(refused.first == ExitStatus::exited(2));
  CHECK_THAT(refused.second, ContainsSubstring("1_mine.png was not written by an earlier prediction"));
  CHECK(fs::exists(out / "pictures/1_cat.png"));
  fs::remove(out / "pictures/1_mine.png");
  CHECK(predict().first == ExitStatus::exited(0));
  CHECK_FALSE(fs::exists(out / "pictures/1_cat.png"));
  CHECK(predictions_in(out).size() == 1);
}

TEST_CASE("a mistake in --predict is one line that names the file or the flag", "[predict]") {
  const TempDir dir;
  serialize::write_safetensors(dir.path() / "model.safetensors",
                               {{"weight", torch::tensor({{2.0f, -1.0f}})}, {"bias", torch::tensor({0.5f})}});
  const auto model = (dir.path() / "model.safetensors").string();
  std::ofstream(dir.path() / "wide.csv") << "1,2,3,4\n";
  fs::create_directories(dir.path() / "used/empty");
  const auto wide = (dir.path() / "wide.csv").string(), used = (dir.path() / "used").string(),
             out = "--out=" + (dir.path() / "new").string();
  const std::vector<std::tuple<std::vector<std::string>, int, std::string>> mistakes = {
      {{"linear", "--predict", wide},
       2,
       "--checkpoint is missing; usage: worker linear --predict FILE.csv..."},
      {{"linear", "--predict", "--checkpoint", model}, 2, "FILE.csv... is missing"},
      {{"linear", "--predict", wide, "--checkpoint", model, "--out", used},
       2,
       "--out: expected a new or empty folder (or --overwrite as well), got "},
      {{"linear", "--predict", wide, "--checkpoint", used, out},
       1,
       "is a folder, but not the folder of a run"},
      {{"linear", "--predict", wide, "--checkpoint", model, out},
       1,
       "wide.csv: expected 2 columns, as the model was trained on, or 3 with the label, got 4"},
      {{"mnist", "--predict", used, "--checkpoint", model}, 1, "model.safetensors"},
      {{"toy", "--predict", wide}, 2, "unknown flag '--predict'"}};
  for (const auto& [words, code, message] : mistakes) {
    CAPTURE(words);
    auto child = run_worker(words);
    CHECK(child.wait(kTraining) == ExitStatus::exited(code));
    CHECK_THAT(child.err(), ContainsSubstring(message));
    CHECK(std::ranges::count(child.err(), '\n') == 1);
  }
}
