#include <cmath>
#include <filesystem>
#include <limits>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/image/image_files.h>
#include <ddprun/report/tensorboard_sink.h>
#include "tests/support/catch.h"
#include "tests/support/python.h"

namespace ddprun::report {
namespace {

const std::filesystem::path kTensorboardGolden = std::filesystem::path(DDPRUN_GOLDEN_DIR) / "tensorboard";

TEST_CASE("events are the bytes that TensorBoard's own writer makes", "[tensorboard]") {
  using std::string_literals::operator""s;
  std::string bytes = framed(version_event(1700000000.25));
  bytes += framed(restart_event({1700000000.5, 70000}));
  bytes += framed(scalars_event(
      {1700000001.0, 70000},
      {{"epoch", 0}, {"train_loss", 0.1234567891}, {"val_acc", std::numeric_limits<double>::quiet_NaN()}}));
  bytes += framed(image_event({1700000002.0, 70001}, "samples", "\x89PNG\x00\xff"s, 300, 2, 3));
  bytes += framed(text_event({1700000003.0, 0}, "config", "lr = 0.1 \xc2\xb5"));
  CHECK(bytes == read_file(kTensorboardGolden / "events.bin"));
}

TEST_CASE("TensorBoard reads what the sink wrote", "[tensorboard]") {
  const TempDir dir;
  TensorBoardSink sink(dir.path());
  sink.add({{"epoch", 0}, {"step", 10}, {"train_loss", 2.5}});
  sink.add({{"epoch", 0}, {"step", 20}, {"train_loss", 1.25}, {"val_acc", 0.5}});
  const auto picture = image::make_image(7, 5, 3, 200);
  sink.add_image("samples", 20, image::encode_png(picture), picture.width, picture.height);
  sink.add_text("config", 0, "`lr = 0.1`");
  CHECK(sink.path().filename().string().starts_with("events.out.tfevents."));

  test::check_python(dir.path(), "tensorboard", R"(
import io
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator('.')
events.Reload()
tags = events.Tags()
assert sorted(tags['scalars']) == ['train/epoch', 'train/loss', 'val/acc'], tags
assert tags['images'] == ['samples'] and tags['tensors'] == ['config/text_summary'], tags
assert [(e.step, e.value) for e in events.Scalars('train/loss')] == [(10, 2.5), (20, 1.25)]
assert [(e.step, e.value) for e in events.Scalars('val/acc')] == [(20, 0.5)]
image, = events.Images('samples')
assert (image.step, image.width, image.height) == (20, 7, 5)
assert Image.open(io.BytesIO(image.encoded_image_string)).getpixel((6, 4)) == (200, 200, 200)
text, = events.Tensors('config/text_summary')
assert text.tensor_proto.string_val == [b'`lr = 0.1`'] and text.step == 0
assert events.SummaryMetadata('config/text_summary').plugin_data.plugin_name == 'text'
)");
}

TEST_CASE("a metric's tag begins with what it is of", "[tensorboard]") {
  const auto [metric, tag] =
      GENERATE(table<std::string, std::string>({{"train_loss", "train/loss"},
                                                {"train_loss_epoch", "train/loss_epoch"},
                                                {"val_pixel_acc", "val/pixel_acc"},
                                                {"test_acc", "test/acc"},
                                                {"lr", "train/lr"},
                                                {"samples_per_second", "train/samples_per_second"},
                                                {"forward_ms", "system/rank0/forward_ms"},
                                                {"rss_mb", "system/rank0/rss_mb"},
                                                {"rss_mb_rank1", "system/rank1/rss_mb"},
                                                {"peak_rss_mb_rank12", "system/rank12/peak_rss_mb"},
                                                {"cpu_percent_max", "system/max/cpu_percent"},
                                                {"loss", "loss"},
                                                {"train", "train"},
                                                {"my_max", "my_max"},
                                                {"val/loss", "val/loss"}}));
  CHECK(tensorboard_tag(metric) == tag);
}

TEST_CASE("TensorBoard forgets what a resumed run does again", "[tensorboard]") {
  const TempDir dir;
  {
    TensorBoardSink sink(dir.path());
    for (const int step : {10, 20, 30, 40}) sink.add({{"step", step}, {"loss", step}});
  }
  TensorBoardSink sink(dir.path(), 21);
  sink.add({{"step", 30}, {"loss", -30}});
  test::check_python(dir.path(), "tensorboard", R"(
import os
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
assert len([name for name in os.listdir('.') if name.startswith('events.out')]) == 2
events = EventAccumulator('.')
events.Reload()
assert [(e.step, e.value) for e in events.Scalars('loss')] == [(10, 10), (20, 20), (30, -30)], events.Scalars('loss')
)");
}

TEST_CASE("every event is in the file immediately, and each sink has its own file", "[tensorboard]") {
  const TempDir dir;
  TensorBoardSink first(dir.path()), second(dir.path());
  CHECK(first.path() != second.path());
  const auto before = std::filesystem::file_size(first.path());
  CHECK(before > 0);
  first.add({{"step", 1}, {"loss", 1}});
  CHECK(std::filesystem::file_size(first.path()) > before);
  CHECK(std::filesystem::file_size(second.path()) == before);
  CHECK_THROWS_AS(TensorBoardSink("/no/such/folder"), IoError);
}

}  // namespace
}  // namespace ddprun::report
