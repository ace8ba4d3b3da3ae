#include <ddprun/train/record/run_report.h>

#include <fstream>
#include <map>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/image/image_files.h>
#include <ddprun/report/metric_sink.h>
#include "tests/support/catch.h"

namespace ddprun::train {
namespace {

using test::ContainsSubstring;

/// A run folder with two rows, a picture, and these texts.
void make_run(const std::filesystem::path& folder, const std::string& summary,
              const std::string& environment) {
  std::filesystem::create_directories(folder);
  report::CsvSink(folder / "metrics.csv", {"epoch", "step", "train_loss"},
                  std::vector<report::MetricRow>{{{"epoch", 0}, {"step", 1}, {"train_loss", 2}},
                                                 {{"epoch", 0}, {"step", 2}, {"train_loss", 1}}});
  write_figure(folder / "figures/samples.png", image::encode_png(image::make_image(28, 28, 1)));
  write_file_atomic(folder / "summary.json", summary);
  write_file_atomic(folder / "config.toml", "lr = 0.001\n");
  write_file_atomic(folder / "environment.json", environment);
}

std::string page_of(const std::filesystem::path& run) {
  write_run_report(run, run / "page.html");
  return read_file(run / "page.html");
}

TEST_CASE("a run's page shows its curves, pictures, summary, configuration and environment", "[run_report]") {
  const TempDir dir;
  make_run(dir.path(), R"({"val_acc":0.9876,"steps":2,"ddp":{"backend":"gloo"},"task":"mnist"})",
           "{\"device\":\"<a>\"}");
  const auto html = page_of(dir.path());
  CHECK_THAT(html, ContainsSubstring("<dt>validation accuracy</dt><dd>98.76 %</dd>"));
  CHECK_THAT(html, ContainsSubstring("<th scope=\"row\">ddp.backend</th><td>gloo</td>"));
  CHECK_THAT(html, ContainsSubstring("<td>0.9876</td>"));
  CHECK_THAT(html, ContainsSubstring("<pre tabindex=\"0\">lr = 0.001\n</pre>"));
  CHECK_THAT(html, ContainsSubstring("&lt;a&gt;"));
  CHECK_THAT(html, ContainsSubstring("data:image/svg+xml;base64,"));
  CHECK_THAT(html, ContainsSubstring("<img width=\"14\" alt=\"samples\" src=\"data:image/png;base64,"));
}

TEST_CASE("a run's page has the profiles of all its ranks, and of no more", "[run_report]") {
  const TempDir dir;
  make_run(dir.path(), "{}", R"({"world_size":2})");
  std::filesystem::create_directories(dir.path() / "profile");
  for (int rank = 0; rank < 3; ++rank)  // the third is of an earlier part, on more ranks
    std::ofstream(dir.path() / profile_table_of(rank)) << "table <" << rank << ">\n";
  const auto html = page_of(dir.path());
  for (const char* part : {"<h2>Profile of rank 0</h2>\n<pre tabindex=\"0\">table &lt;0&gt;\n</pre>",
                           "<h2>Profile of rank 1</h2>\n<pre tabindex=\"0\">table &lt;1&gt;\n</pre>"})
    CHECK_THAT(html, ContainsSubstring(part));
  CHECK_THAT(html, !ContainsSubstring("Profile of rank 2"));
  std::filesystem::remove_all(dir.path() / "profile");
  CHECK_THAT(page_of(dir.path()), !ContainsSubstring("Profile"));
}

TEST_CASE("the head of a run's page tells task, time, host, commit and command", "[run_report]") {
  const TempDir dir;
  make_run(
      dir.path() / "mine", R"({"task":"mnist","world_size":2,"epochs":1,"steps":10})",
      R"({"date":"2026-11-23 18:03 UTC","host":"node1","commit":"0123456789abcdef","command":"worker <mnist>"})");
  const auto html = page_of(dir.path() / "mine");
  const std::string subtitle =
      "2026-11-23 18:03 UTC, on node1, commit 0123456789ab, 2 ranks, 1 epoch, 10 steps";
  CHECK_THAT(html, ContainsSubstring("<title>mnist: " + subtitle + "</title>"));
  CHECK_THAT(html, ContainsSubstring("<h1>mnist</h1>\n<p class=\"subtitle\">" + subtitle +
                                     "</p>\n"
                                     "<pre class=\"command\">worker &lt;mnist&gt;</pre>"));
  make_run(dir.path() / "mine", "{}", "{}");
  CHECK_THAT(page_of(dir.path() / "mine"), ContainsSubstring("<title>mine</title>"));
}

TEST_CASE("numbers of the summary are rounded for people", "[run_report]") {
  const TempDir dir;
  make_run(dir.path(),
           R"({"steps":1234567,"loss":0.5259807582460292,"rate":620466.9112620373,"tiny":1.23456e-07,
               "huge":1.23456e+12,"half":-12.5,"gpu_memory_mb":[{"reserved":2.000001},{"reserved":3}]})",
           "{}");
  const auto html = page_of(dir.path());
  for (const auto& [name, value] : std::map<std::string, std::string>{{"steps", "1234567"},
                                                                      {"loss", "0.526"},
                                                                      {"rate", "620467"},
                                                                      {"tiny", "1.235e-07"},
                                                                      {"half", "-12.5"},
                                                                      {"gpu_memory_mb.0.reserved", "2"},
                                                                      {"gpu_memory_mb.1.reserved", "3"}})
    CHECK_THAT(html, ContainsSubstring("<th scope=\"row\">" + name + "</th><td>" + value + "</td>"));
}

TEST_CASE("a page counts epochs from 1, as people do", "[run_report]") {
  const TempDir dir;
  make_run(
      dir.path(),
      R"({"epochs":12,"epochs_count_from":0,"best":{"epoch":1,"step":20},"last":{"epoch":11,"step":120}})",
      "{}");
  const auto html = page_of(dir.path());
  for (const auto& [name, value] : std::map<std::string, std::string>{
           {"epochs", "12"}, {"best.epoch", "2"}, {"best.step", "20"}, {"last.epoch", "12"}})
    CHECK_THAT(html, ContainsSubstring("<th scope=\"row\">" + name + "</th><td>" + value + "</td>"));
  CHECK_THAT(html, !ContainsSubstring("epochs_count_from"));
  std::filesystem::remove(dir.path() / "summary.json");  // killed: the last row, whose epoch is 0
  CHECK_THAT(page_of(dir.path()), ContainsSubstring("<th scope=\"row\">epoch</th><td>1</td>"));
}

TEST_CASE("while a run goes on, and after it was killed, its page shows the last values", "[run_report]") {
  const TempDir dir;
  const auto page = dir.path() / "page.html";
  make_run(dir.path(), R"({"train_loss":9})", "{}");  // of an earlier attempt
  write_run_report(dir.path(), page, "mnist");
  const auto running = read_file(page);
  CHECK_THAT(running, ContainsSubstring("<h1>mnist</h1>\n<p id=\"notice\">running, as of "));
  CHECK_THAT(running, ContainsSubstring("<dt>training loss</dt><dd>1</dd>"));
  CHECK_THAT(running, !ContainsSubstring("<img"));
  std::filesystem::remove(dir.path() / "summary.json");
  const auto killed = page_of(dir.path());
  CHECK_THAT(killed, ContainsSubstring("<dt>training loss</dt><dd>1</dd>"));
  CHECK_THAT(killed, !ContainsSubstring("id=\"notice\""));
  CHECK_THAT(killed, ContainsSubstring("data:image/png;base64,"));
}

TEST_CASE("a page does not show what the run had ended with before it was resumed", "[run_report]") {
  const TempDir dir;
  SECTION("in an earlier branch") {
    make_run(dir.path(), R"({"train_loss":9,"steps":2})", "{}");
    write_file_atomic(dir.path() / "run.json", R"({"run":"a","files":{"metrics.csv":1,"summary.json":1}})");
    CHECK_THAT(page_of(dir.path()), ContainsSubstring("<dt>training loss</dt><dd>9</dd>"));
    write_file_atomic(dir.path() / "run.json", R"({"run":"a","files":{"metrics.csv":2,"summary.json":1}})");
  }
  SECTION("after fewer steps") { make_run(dir.path(), R"({"train_loss":9,"steps":1})", "{}"); }
  const auto page = page_of(dir.path());
  CHECK_THAT(page, ContainsSubstring("<dt>training loss</dt><dd>1</dd>"));
  CHECK_THAT(page, !ContainsSubstring(", 1 step"));
}

TEST_CASE("a page is written of what there is, and not without metrics", "[run_report]") {
  const TempDir dir;
  CHECK_THROWS_AS(write_run_report(dir.path(), dir.path() / "page.html"), IoError);
  make_run(dir.path(), "no JSON", R"({"date": 1, "host": null})");
  CHECK_THAT(page_of(dir.path()), ContainsSubstring("no JSON"));
  make_run(dir.path(), "[]", "");
  CHECK_THAT(page_of(dir.path()), ContainsSubstring("<h1>"));
}

}  // namespace
}  // namespace ddprun::train
