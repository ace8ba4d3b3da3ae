#include <ddprun/report/html_report.h>

#include <nlohmann/json.hpp>

#include <ddprun/image/line_chart.h>
#include <ddprun/image/png.h>
#include <ddprun/report/page_assets.h>
#include "tests/support/browser.h"
#include "tests/support/catch.h"

namespace ddprun::report {
namespace {

using test::ContainsSubstring;

HtmlReport example() {
  HtmlReport report;
  report.title = "mnist <b>& co</b>";
  report.subtitle = "2 ranks, 5 epochs";
  report.command = "worker mnist --out=" + std::string(300, 'z');
  report.highlights = {{"test accuracy", "99.12 %"}, {"train loss", "0.0123"}, {"time", "2 min 5 s"}};
  const image::LineChart chart{
      .title = "loss", .x_label = "step", .series = {{"loss", {0, 1, 2}, {3, 2, 1}}}};
  report.figures = {{"loss", "image/svg+xml", image::line_chart_svg(chart), "loss over steps"},
                    {"wide", "image/png", image::encode_png(image::make_image(3000, 20, 3, 90)), "\"wide\""}};
  report.sections = {
      {"Summary", {{"checkpoint", "/a/" + std::string(300, 'x') + "/last.pt"}, {"steps", "2345"}}, ""},
      {"Configuration", {}, "lr = 0.1\nname = \"" + std::string(500, 'y') + "\"\n<script>\n"}};
  return report;
}

TEST_CASE("text is escaped wherever it stands", "[html_report]") {
  const auto html = to_html(example());
  CHECK_THAT(html, ContainsSubstring("<title>mnist &lt;b&gt;&amp; co&lt;/b&gt;: 2 ranks, 5 epochs</title>"));
  CHECK_THAT(html, ContainsSubstring("<h1>mnist &lt;b&gt;&amp; co&lt;/b&gt;</h1>"));
  CHECK_THAT(html, ContainsSubstring("alt=\"&quot;wide&quot;\""));
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

}  // namespace
}  // namespace ddprun::report
