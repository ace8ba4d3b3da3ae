#include <ddprun/report/html_report.h>

#include <nlohmann/json.hpp>

#include <ddprun/image/line_chart.h>
#include <ddprun/image/png.h>
#include "tests/support/browser.h"
#include "tests/support/catch.h"

namespace ddprun::report {
namespace {

using test::ContainsSubstring;

HtmlReport example() {
  HtmlReport report;
  report.title = "mnist <b>& co</b>";
  report.subtitle = "2 ranks, 5 epochs";
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
  CHECK_THAT(html, ContainsSubstring("<title>mnist &lt;b&gt;&amp; co&lt;/b&gt;</title>"));
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
    CHECK(frame["title"] == example().title);
    CHECK(frame["heading"] == example().title);
    CHECK(frame["images"] == 2);
    CHECK(frame["loaded"] == true);
    CHECK(frame["requests"] == 0);
    CHECK(frame["needed"] == frame["width"]);  // no scrolling sideways
  }
  CHECK(found[0]["width"].get<int>() <= 400);
}

}  // namespace
}  // namespace ddprun::report
