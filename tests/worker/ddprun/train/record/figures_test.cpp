#include <ddprun/train/record/run_report.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/image/image_files.h>
#include "tests/support/catch.h"

namespace ddprun::train {
namespace {

std::vector<std::string> names_of(const report::LineChart& chart) {
  std::vector<std::string> names;
  for (const auto& series : chart.series) names.push_back(series.name);
  return names;
}
using Names = std::vector<std::string>;

/// Rows as the trainer makes them: a step's loss twice an epoch, and the epoch's figures at its end.
std::vector<report::MetricRow> rows_of_two_epochs() {
  return {{{"epoch", 0}, {"step", 1}, {"lr", 0.1}, {"train_loss", 2.0}},
          {{"epoch", 0}, {"step", 2}, {"lr", 0.1}, {"train_loss", 1.5}},
          {{"epoch", 0},
           {"step", 2},
           {"train_loss_epoch", 1.7},
           {"train_acc", 0.5},
           {"val_acc", 0.4},
           {"rss_mb", 300}},
          {{"epoch", 1}, {"step", 4}, {"lr", 0.01}, {"train_loss", 1.0}},
          {{"epoch", 1},
           {"step", 4},
           {"train_loss_epoch", 1.2},
           {"train_acc", 0.7},
           {"val_acc", 0.6},
           {"val_iou", 0.3}}};
}

TEST_CASE("a run's charts hold the figures that there are", "[figures]") {
  const auto charts = charts_of(rows_of_two_epochs());
  REQUIRE(charts.size() == 3);
  CHECK(charts[0].name == "loss");
  CHECK(names_of(charts[0].chart) == Names{"train_loss", "train_loss_epoch"});
  CHECK(charts[0].chart.x_label == "step");
  CHECK(charts[0].chart.series[0].x == std::vector<double>{1, 2, 4});
  CHECK(charts[0].chart.series[1].y == std::vector<double>{1.7, 1.2});
  CHECK(charts[1].name == "accuracy");
  CHECK(charts[1].chart.title == "Dice, IoU and pixel accuracy");
  CHECK(names_of(charts[1].chart) == Names{"train_acc", "val_acc", "val_iou"});
  CHECK(charts[1].chart.x_label == "epoch");
  CHECK(charts[1].chart.series[1].x == std::vector<double>{1, 2});  // for people, epochs count from 1
  CHECK(charts[2].name == "lr");
  CHECK(charts[2].chart.series[0].y == std::vector<double>{0.1, 0.1, 0.01});
  CHECK(charts_of({}).empty());
  CHECK(charts_of({{{"epoch", 0}, {"step", 2}, {"rss_mb", 5}}}).empty());
}

TEST_CASE("figures are files of the run's folder, and in the report", "[figures]") {
  const TempDir dir;
  const auto folder = dir.path() / "figures";
  const auto charts = charts_of(rows_of_two_epochs());
  write_charts(folder, charts);
  const auto grid =
      image::draw_image_grid({{image::make_image(28, 28, 3), "pred 3", true}}, "samples of the test set");
  write_figure(folder / "samples.png", image::encode_png(grid));
  const auto confusion = draw_confusion({{"a", "b"}, {9, 1, 0, 9}}, "confusion");
  write_figure(folder / "confusion.svg", confusion.svg);
  CHECK(confusion.picture.width == 480);
  CHECK(confusion.picture.pixel(10, 470)[0] == 255);
  CHECK(confusion.picture.pixel(470, 470)[0] == 8);
  for (const char* name : {"loss", "accuracy", "lr"})
    CHECK(read_file(folder / (std::string(name) + ".svg")).starts_with("<svg "));
  write_figure(folder / "broken.png", "no picture");

  const auto figures = report_figures(folder, charts);
  Names names;
  for (const auto& figure : figures) names.push_back(figure.description + ": " + figure.media_type);
  CHECK(names == Names{"loss over steps; train_loss ends at 1; train_loss_epoch ends at 1.2: image/svg+xml",
                       "Dice, IoU and pixel accuracy over epochs; train_acc ends at 0.7; val_acc ends at "
                       "0.6; val_iou ends at "
                       "0.3: image/svg+xml",
                       "learning rate over steps; lr ends at 0.01: image/svg+xml", "confusion: image/svg+xml",
                       "samples: image/png"});
  CHECK(figures[2].title == "learning rate");
  CHECK((figures[2].curves && !figures[3].curves));
  CHECK(figures[4].bytes == read_file(folder / "samples.png"));
  CHECK(figures[4].title == "samples of the test set");
  CHECK(figures[4].width == grid.width / 2);
  REQUIRE(figures[4].texts.size() == 1);
  CHECK(figures[4].texts[0].text == "pred 3");
  CHECK(figures[4].texts[0].y == grid.captions[0].y / 2.0);
  CHECK(report_figures(dir.path() / "none", {}).empty());
}

TEST_CASE("pictures of epochs are in the report in their order, for its slider", "[figures]") {
  const TempDir dir;
  for (const char* name : {"end", "000024", "000003", "samples"})
    write_figure(dir.path() / (name == std::string("samples") ? "" : "epochs") / (std::string(name) + ".png"),
                 image::encode_png(image::make_image(4, 4, 3)));
  Names names;
  for (const auto& figure : report_figures(dir.path(), {})) names.push_back(figure.epoch);
  CHECK(names == Names{"epoch 3", "epoch 24", "at the end", ""});
}

TEST_CASE("figures that cannot be written are refused by name", "[figures]") {
  CHECK_THROWS_AS(write_figure("/dev/null/figures/samples.png", ""), IoError);
}

}  // namespace
}  // namespace ddprun::train
