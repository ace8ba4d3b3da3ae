#include <ddprun/report/html_report.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include <ddprun/image/image_files.h>
#include <ddprun/report/charts.h>
#include "tests/support/browser.h"
#include "tests/support/catch.h"

namespace ddprun::report {
namespace {

using test::Approx;
using test::ContainsSubstring;

HtmlReport example() {
  HtmlReport report;
  report.title = "mnist <b>& co</b>";
  report.subtitle = "2 ranks, 5 epochs";
  report.command = "worker mnist --out=" + std::string(300, 'z');
  report.highlights = {{"test accuracy", "99.12 %"}, {"train loss", "0.0123"}, {"time", "2 min 5 s"}};
  const LineChart chart{.title = "loss", .x_label = "step", .series = {{"loss", {0, 1, 2}, {3, 2, 1}}}};
  report.figures = {
      {"loss", "image/svg+xml", line_chart_svg(chart), "loss over steps", 0, {}, true},
      {"wide", "image/png", image::encode_png(image::make_image(3000, 20, 3, 90)), "\"wide\"", 1500}};
  report.sections = {
      {"Summary", {{"checkpoint", "/a/" + std::string(300, 'x') + "/last.pt"}, {"steps", "2345"}}, ""},
      {"Configuration", {}, "lr = 0.1\nname = \"" + std::string(500, 'y') + "\"\n<script>\n"}};
  return report;
}

TEST_CASE("text is escaped wherever it stands", "[html_report]") {
  const auto html = to_html(example());
  CHECK_THAT(html, ContainsSubstring("<title>mnist &lt;b&gt;&amp; co&lt;/b&gt;: 2 ranks, 5 epochs</title>"));
  CHECK_THAT(html, ContainsSubstring("<h1>mnist &lt;b&gt;&amp; co&lt;/b&gt;</h1>"));
  CHECK_THAT(html, ContainsSubstring("<figure class=\"wide\"><figcaption>wide</figcaption><img "
                                     "width=\"1500\" alt=\"&quot;wide&quot;\""));
  CHECK_THAT(html, ContainsSubstring("&lt;script&gt;"));
  CHECK(html.find("<script") == std::string::npos);
  CHECK(html_text("a'b\xff\x01\n") == "a&#39;b\xef\xbf\xbd\xef\xbf\xbd\n");
}

TEST_CASE("the page asks nobody for anything", "[html_report]") {
  const auto html = to_html(example());
  std::size_t sources = 0;
  for (auto at = html.find("src=\""); at != std::string::npos; at = html.find("src=\"", at + 1), ++sources)
    CHECK(html.substr(at + 5, 5) == "data:");
  CHECK(sources == 2);
  CHECK(html.find("http") == std::string::npos);
  CHECK(html.find("@import") == std::string::npos);
}

TEST_CASE("pictures of epochs share a place, with a slider", "[html_report]") {
  HtmlReport report;
  for (const char* epoch : {"epoch 1", "epoch 2", "at the <end>"})
    report.figures.push_back({.title = "",
                              .media_type = "image/png",
                              .bytes = image::encode_png(image::make_image(40, 20, 3, 90)),
                              .description = epoch,
                              .width = 20,
                              .epoch = epoch});
  const auto html = to_html(report);
  CHECK_THAT(html, ContainsSubstring("<input type=\"range\" min=\"0\" max=\"2\" value=\"2\" hidden"));
  CHECK_THAT(html, ContainsSubstring("title=\"epoch 1\" hidden"));
  CHECK_THAT(html, ContainsSubstring("title=\"at the &lt;end&gt;\" style"));  // shown without JavaScript
  CHECK_THAT(html, !ContainsSubstring(" src=\"http"));
  auto moved = html;
  moved.insert(moved.find("</body>"), R"(<script>{
const slider = document.querySelector(".epochs input");
slider.value = 0;
slider.dispatchEvent(new Event("input"));
document.title = [...document.querySelectorAll(".panel")].map(panel => panel.hidden ? "-" : panel.title);
}</script>)");
  const auto found = test::shown_in_browser(moved, {600}).at(0);
  CHECK(found["title"] == "epoch 1,-,-");
  CHECK_THAT(found["text"].get<std::string>(), ContainsSubstring("Over the epochs: epoch 1"));
  CHECK(found["needed"] == found["width"]);
}

TEST_CASE("a report of nothing is a page", "[html_report]") {
  const auto html = to_html({});
  CHECK(html.starts_with("<!doctype html>"));
  CHECK(html.find("<img") == std::string::npos);
}

TEST_CASE("base64 is as RFC 4648 has it", "[html_report]") {
  CHECK(base64("").empty());
  CHECK(base64("f") == "Zg==");
  CHECK(base64("fo") == "Zm8=");
  CHECK(base64("foo") == "Zm9v");
  CHECK(base64("foobar") == "Zm9vYmFy");
  CHECK(base64("\xff\xfe\xfd") == "//79");
}

TEST_CASE("a browser shows the report with its pictures and without errors, on a phone too",
          "[html_report]") {
  const auto found = test::shown_in_browser(to_html(example()), {400, 1200});
  REQUIRE(found.size() == 2);
  for (const auto& frame : found) {
    INFO(frame.dump());
    CHECK(frame["title"] == example().title + ": 2 ranks, 5 epochs");
    CHECK(frame["heading"] == example().title);
    CHECK(frame["images"] == 2);
    CHECK(frame["loaded"] == true);
    CHECK(frame["requests"] == 0);
    CHECK(frame["needed"] == frame["width"]);  // no scrolling sideways
  }
  CHECK(found[0]["width"].get<int>() <= 400);
}

/// Two runs, with names that would end a script or begin an element.
HtmlReport two_runs() {
  HtmlReport report = example();
  const nlohmann::json columns = {{"step", {1, 2, 3, 4}},
                                  {"epoch", {0, 0, 1, 1}},
                                  {"train_loss", {2.5, 1.25, 0.5, 0.123456}},
                                  {"val_loss", {nullptr, 1.5, nullptr, 0.5}},
                                  {"lr", {0.1, 0.1, 0.1, 0.1}},
                                  {"</script><b>acc", {nullptr, nullptr, nullptr, 0.75}}};
  const nlohmann::json time = {{"process_seconds", 20},
                               {"start_seconds", 2},
                               {"compute_seconds", 15.5},
                               {"data_wait_seconds", 0.001},
                               {"evaluation_seconds", 2.5}};
  const nlohmann::json one = {{"name", "one"},
                              {"columns", columns},
                              {"time", time},
                              {"config", "[train]\nlr = 0.1\n"}},
                       two = {{"name", "two"},
                              {"columns", {{"step", {1, 2}}, {"epoch", {0, 1}}, {"train_loss", {2, 1}}}},
                              {"time", nullptr},
                              {"config", "[train]\nlr = 0.2\n"}};
  report.runs_json = nlohmann::json{{"runs", {one, two}}}.dump();
  return report;
}

TEST_CASE("the script's data cannot end it", "[html_report]") {
  const auto html = to_html(two_runs());
  CHECK(html.find("</script><b>") == std::string::npos);
  CHECK_THAT(html, ContainsSubstring("u003c/script>"));
}

TEST_CASE("a browser draws the curves of runs, and lets one compare them", "[html_report]") {
  if (kDygraphsScript.empty()) test::skip("this build has no dygraphs");
  const auto found = test::shown_in_browser(to_html(two_runs()), {400, 1200});
  REQUIRE(found.size() == 2);
  for (const auto& frame : found) {
    INFO(frame.dump());
    CHECK(frame["charts"] == nlohmann::json({"Loss", "Learning rate", "Other"}));
    CHECK(frame["drawn"] == true);
    CHECK(frame["series"] == nlohmann::json({"one: train_loss 0.1235", "one: val_loss 0.5",
                                             "two: train_loss 1", "one: lr 0.1"}));
    CHECK(frame["cards"] == nlohmann::json({"one: </script><b>acc0.75"}));
    CHECK(frame["after"]["pressed"] == nlohmann::json({"false", "true", "true", "true"}));
    CHECK(frame["after"]["series"][0] != frame["series"][0]);  // smoothed
    CHECK(frame["requests"] == 0);
    CHECK(frame["needed"] == frame["width"]);
    for (const char* text :
         {"What differs", "train.lr", "0.2", "Where the time went: one", "compute 15.50 s (77.5 %)"}) {
      INFO(text);
      CHECK_THAT(frame["text"].get<std::string>(), ContainsSubstring(text));
    }
  }
}

TEST_CASE("in a comparison a run has one colour: in every chart, in the table and at its times",
          "[html_report]") {
  if (kDygraphsScript.empty()) test::skip("this build has no dygraphs");
  HtmlReport report;
  nlohmann::json runs;
  for (int i = 0; i < 10; ++i) {
    const auto name = "run" + std::to_string(i);
    runs.push_back(
        {{"name", name},
         {"columns", {{"step", {1, 2}}, {"train_loss", {2, 1}}, {"val_loss", {3, 2}}, {"lr", {1, 2}}}},
         {"time", {{"process_seconds", 9}, {"compute_seconds", 9}}},
         {"config", "lr = " + std::to_string(i) + "\n"}});
    if (i == 0) runs[0]["columns"].erase("lr");  // the charts have the runs in other places
    report.sections.push_back({name + ", yesterday", {{"loss", "1"}}, "", i});
  }
  report.runs_json = nlohmann::json{{"runs", runs}}.dump();
  for (const auto& frame : test::shown_in_browser(to_html(report), {1200})) {
    INFO(frame.dump());
    const std::vector<std::string> series = frame["series"], curves = frame["curves"];
    std::map<std::string, std::string> colour_of;
    std::set<std::string> losses;
    for (std::size_t i = 0; i < series.size(); ++i) {
      const auto at = curves[i].find("stroke=\"#");
      REQUIRE(at != std::string::npos);
      const auto run = series[i].substr(0, series[i].find(':')), colour = curves[i].substr(at + 8, 7);
      CHECK(colour_of.try_emplace(run, colour).first->second == colour);
      if (series[i].find("loss") != std::string::npos) CHECK(losses.insert(curves[i]).second);
    }
    CHECK(losses.size() == 20);
    CHECK(colour_of["run8"] == colour_of["run0"]);  // of eight
    CHECK(colour_of["run1"] != colour_of["run0"]);
    const std::vector<std::string> marks = frame["marks"];
    for (int i = 0; i < 10; ++i) {
      const auto run = "run" + std::to_string(i), colour = " var(--c" + std::to_string(i % 8) + ")";
      for (const auto& text : {run, "Where the time went: " + run, run + ", yesterday"})
        CHECK(std::ranges::count(marks, text + colour) == 1);
    }
  }
}

TEST_CASE("where communication is shown, a sentence says what overlap is", "[html_report]") {
  if (kDygraphsScript.empty()) test::skip("this build has no dygraphs");
  HtmlReport report;
  nlohmann::json run = {
      {"name", "one"},
      {"columns", {{"step", {1, 2}}, {"communication_ms", {5, 5}}, {"overlap_ms", {4, 4}}}},
      {"time", {{"process_seconds", 9}, {"compute_seconds", 8}, {"communication_seconds", 1}}},
      {"config", ""}};
  const auto text = [&] {
    report.runs_json = nlohmann::json{{"runs", {run}}}.dump();
    return test::shown_in_browser(to_html(report), {400})[0]["seen"].get<std::string>();
  };
  const auto in_chart =
      ContainsSubstring("in which backward still computed: only the rest makes a step longer");
  const auto at_times = ContainsSubstring("(the overlap) cost no time");
  const auto with = text();  // not in the assertion: it skips where there is no browser
  CHECK_THAT(with, in_chart && at_times);
  run["columns"].erase("overlap_ms");
  run["time"]["communication_seconds"] = 0;
  const auto without = text();
  CHECK_THAT(without, !in_chart && !at_times);
}

/// A page with these columns of one run.
std::string page_of_columns(const nlohmann::json& columns) {
  HtmlReport report;
  report.runs_json =
      nlohmann::json{{"runs", {{{"name", "one"}, {"columns", columns}, {"time", nullptr}, {"config", ""}}}}}
          .dump();
  return to_html(report);
}

TEST_CASE("a metric with one value beside a curve is a large dot", "[html_report]") {
  if (kDygraphsScript.empty()) test::skip("this build has no dygraphs");
  nlohmann::json columns;
  for (int i = 0; i < 100; ++i) {
    columns["step"].push_back(i);
    columns["train_loss"].push_back(1 + i % 7);
    columns["test_loss"].push_back(i == 50 ? nlohmann::json(4.5) : nlohmann::json());
  }
  for (const auto& frame : test::shown_in_browser(page_of_columns(columns), {400, 1200})) {
    INFO(frame["ink"].dump());
    REQUIRE(frame["series"] == nlohmann::json({"test_loss 4.5", "train_loss 2"}));
    CHECK(frame["ink"][0] > 60);
    CHECK(frame["ink"][1] > 200);
  }
}

TEST_CASE("no two of thirty curves look the same", "[html_report]") {
  if (kDygraphsScript.empty()) test::skip("this build has no dygraphs");
  nlohmann::json columns = {{"step", {1, 2}}};
  for (int i = 0; i < 30; ++i) columns["loss" + std::to_string(i)] = {i, i + 1};
  for (const auto& frame : test::shown_in_browser(page_of_columns(columns), {1200})) {
    const std::vector<std::string> curves = frame["curves"];
    CHECK(curves.size() == 30);
    CHECK(std::set(curves.begin(), curves.end()).size() == 30);
  }
  columns = {{"step", {1, 2}}};
  for (int i = 0; i < 9; ++i) columns["loss" + std::to_string(i)] = {i, i};
  for (const auto& frame : test::shown_in_browser(page_of_columns(columns), {1200})) {
    const std::vector<double> ink = frame["ink"];  // of the first and the ninth, which share a colour
    CHECK(ink[0] > 1.2 * ink[1]);
    CHECK(ink[0] < 1.9 * ink[1]);
  }
}

TEST_CASE("what lies between the ranks of a metric is shaded", "[html_report]") {
  if (kDygraphsScript.empty()) test::skip("this build has no dygraphs");
  const nlohmann::json columns = {{"step", {1, 2, 3}},
                                  {"cpu_percent_rank0", {100, 110, 90}},
                                  {"cpu_percent_rank1", {150, 150, 150}},
                                  {"cpu_percent_rank2", {200, 190, 210}},
                                  {"rss_mb_min", {1, 1, 2}},
                                  {"rss_mb_max", {3, 3, 4}},
                                  {"train_loss", {3, 2, 1}},
                                  {"val_loss", {1, 2, 3}}};
  for (const auto& frame : test::shown_in_browser(page_of_columns(columns), {1200})) {
    INFO(frame["shaded"].dump());
    REQUIRE(frame["charts"] == nlohmann::json({"Loss", "CPU, percent of a core", "Memory, MiB"}));
    CHECK(frame["shaded"][0] < 2000);
    CHECK(frame["shaded"][1] > 10000);
    CHECK(frame["shaded"][2] > 10000);
  }
}

TEST_CASE("over epochs every row has its place", "[html_report]") {
  if (kDygraphsScript.empty()) test::skip("this build has no dygraphs");
  const nlohmann::json columns = {
      {"step", {10, 20, 30, 40}}, {"epoch", {0, 0, 1, 1}}, {"train_loss", {8, 4, 2, 1}}};
  for (const auto& frame : test::shown_in_browser(page_of_columns(columns), {1200})) {
    INFO(frame["after"].dump());
    const std::vector<std::string> labels = frame["after"]["labels"];
    CHECK(std::stod(labels.front()) < 0.9);  // not the end of epoch 0
    CHECK(labels.back() == "2");
  }
}

TEST_CASE("a chart that cannot have a log scale says so", "[html_report]") {
  if (kDygraphsScript.empty()) test::skip("this build has no dygraphs");
  const nlohmann::json columns = {{"step", {1, 2}}, {"train_loss", {1, -1}}, {"lr", {0.1, 0.01}}};
  for (const auto& frame : test::shown_in_browser(page_of_columns(columns), {400})) {
    INFO(frame["after"].dump());
    CHECK(frame["after"]["notes"] ==
          nlohmann::json({"Loss: not on a log scale: some values are not above 0"}));
  }
}

int pixels_near(const image::Image& picture, int red, int green, int blue) {
  int found = 0;
  for (int y = 0; y < picture.height; ++y)
    for (int x = 0; x < picture.width; ++x) {
      const auto* pixel = picture.pixel(x, y);
      found +=
          std::abs(pixel[0] - red) < 12 && std::abs(pixel[1] - green) < 12 && std::abs(pixel[2] - blue) < 12;
    }
  return found;
}

TEST_CASE("texts over a picture are escaped, and at its width's measures", "[html_report]") {
  HtmlReport report;
  report.figures = {{"", "image/png", "bytes", "", 300, {{5, 120.5, 100, "pred <3>\ntrue 5", true}}}};
  CHECK_THAT(
      to_html(report),
      ContainsSubstring("<div class=\"panel\" style=\"--of:300\"><img width=\"300\"") &&
          ContainsSubstring("<span class=\"wrong\" style=\"--x:5;--y:120.5;--width:100\">pred &lt;3&gt;\n"
                            "true 5</span></div>"));
}

TEST_CASE("in dark mode charts and a picture's ground are dark, and what was photographed stays",
          "[html_report]") {
  auto photo = image::make_image(112, 112, 3, 40);
  for (std::size_t i = 0; i < photo.bytes.size(); i += 3) photo.bytes[i] = 200;
  const auto grid = image::draw_image_grid({{photo, "a"}, {photo, "b"}});
  HtmlReport report;
  report.figures = {{"", "image/png", image::encode_png(grid), "", grid.width / image::kPixelScale},
                    {"", "image/svg+xml", confusion_matrix_svg({{"a", "b"}, {9, 1, 0, 9}}), ""}};
  const auto light = test::screenshot(to_html(report), false), dark = test::screenshot(to_html(report), true);
  for (const auto* page : {&light, &dark})
    CHECK(pixels_near(*page, 200, 40, 40) == Approx(2 * 112 * 112).epsilon(0.05));
  CHECK(pixels_near(light, 255, 255, 255) > 150000);
  CHECK(pixels_near(dark, 255, 255, 255) < 500);
}

TEST_CASE("the page of a run that goes on says so", "[html_report]") {
  HtmlReport report = two_runs();
  report.notice = "running, as of <now>";
  for (const auto& frame : test::shown_in_browser(to_html(report), {400}))
    CHECK_THAT(frame["text"].get<std::string>(), ContainsSubstring(report.notice));
}

}  // namespace
}  // namespace ddprun::report
