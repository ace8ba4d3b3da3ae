#include <ddprun/train/record/run_report.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/image/png.h>
#include <ddprun/report/metric_sink.h>
#include "tests/support/catch.h"

namespace ddprun::train {
namespace {

using test::ContainsSubstring;

TEST_CASE("a run's page shows its curves, pictures, summary, configuration and environment", "[run_report]") {
  const TempDir dir;
  report::CsvSink(
      dir.path() / "metrics.csv", {"epoch", "step", "train_loss"},
      {{{"epoch", 0}, {"step", 1}, {"train_loss", 2}}, {{"epoch", 0}, {"step", 2}, {"train_loss", 1}}});
  write_figure(dir.path() / "figures", "samples", image::encode_png(image::make_image(28, 28, 1)));
  write_run_report(dir.path(), {"mnist", "2 ranks",
                                R"({"val_acc":0.9876,"steps":2,"ddp":{"backend":"gloo"},"task":"mnist"})",
                                "lr = 0.001\n", "{\"host\":\"<a>\"}"});
  CHECK(image::read_png(dir.path() / "figures/loss.png").width == 1600);
  const auto html = read_file(dir.path() / "report.html");
  CHECK_THAT(html, ContainsSubstring("<dt>validation accuracy</dt><dd>98.76 %</dd>"));
  CHECK_THAT(html, ContainsSubstring("<th scope=\"row\">ddp.backend</th><td>gloo</td>"));
  CHECK_THAT(html, ContainsSubstring("<td>0.9876</td>"));
  CHECK_THAT(html, ContainsSubstring("<pre tabindex=\"0\">lr = 0.001\n</pre>"));
  CHECK_THAT(html, ContainsSubstring("&lt;a&gt;"));
  CHECK_THAT(html, ContainsSubstring("data:image/svg+xml;base64,"));
  CHECK_THAT(html, ContainsSubstring("<img width=\"14\" alt=\"samples\" src=\"data:image/png;base64,"));
}

TEST_CASE("a page is written of what there is, and not without metrics", "[run_report]") {
  const TempDir dir;
  CHECK_THROWS_AS(write_run_report(dir.path(), {}), IoError);
  write_file_atomic(dir.path() / "metrics.csv", "epoch,step\n");
  write_run_report(dir.path(), {"a", "", "no JSON", "", R"({"date": 1, "host": null})"});
  CHECK_THAT(read_file(dir.path() / "report.html"), ContainsSubstring("no JSON"));
}

}  // namespace
}  // namespace ddprun::train
