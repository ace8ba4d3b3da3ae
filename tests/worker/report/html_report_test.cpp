#include "worker/report/html_report.h"

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "tests/support/catch.h"
#include "tests/support/child.h"
#include "worker/image/line_chart.h"
#include "worker/image/png.h"
#include "worker/report/html_text.h"

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

/// A Chromium; skips the test if there is none.
std::string browser() {
  for (const char* name : {"chromium", "google-chrome", "chromium-browser"})
    for (const char* folder : {"/usr/bin/", "/usr/local/bin/"})
      if (std::filesystem::exists(std::string(folder) + name)) return std::string(folder) + name;
  test::skip("no chromium");
}

/// A page that shows the report in frames of these widths and then says what is in them.
std::string page_of_frames(const std::string& html, const std::vector<int>& widths) {
  std::string page = "<!doctype html><meta charset=utf-8><link rel=icon href=data:,>\n";
  for (const int width : widths)
    page += "<iframe style='border:0;height:800px;width:" + std::to_string(width) + "px' srcdoc=\"" +
            html_text(html) + "\"></iframe>\n";
  return page + R"(<pre id=found></pre><script>
window.onload = () => {
  const found = [...document.querySelectorAll('iframe')].map(frame => {
    const page = frame.contentDocument, images = [...page.images];
    return {title: page.title, heading: page.querySelector('h1').textContent,
            images: images.length, loaded: images.every(image => image.complete && image.naturalWidth > 0),
            width: page.documentElement.clientWidth, needed: page.documentElement.scrollWidth,
            requests: frame.contentWindow.performance.getEntriesByType('resource')
                        .filter(entry => !entry.name.startsWith('data:')).length};
  });
  document.getElementById('found').textContent = 'FOUND' +
    JSON.stringify(found).replace(/[<>&]/g, c => '\\u00' + c.charCodeAt(0).toString(16)) + 'END';
};
</script>)";
}

TEST_CASE("a browser shows the report with its pictures and without errors, on a phone too",
          "[html_report]") {
  const auto program = browser();
  const TempDir dir;
  write_file_atomic(dir.path() / "page.html", page_of_frames(to_html(example()), {400, 1200}));
  test::Child chromium(
      {.argv = {program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--disable-breakpad", "--user-data-dir=" + (dir.path() / "profile").string(),
                "--enable-logging=stderr", "--dump-dom", "file://" + (dir.path() / "page.html").string()},
       .env = {{"HOME", dir.path().string()}}});
  const auto status = chromium.wait(std::chrono::seconds(100));
  REQUIRE(status == ExitStatus::exited(0));
  CHECK(chromium.err().find("CONSOLE") == std::string::npos);
  const auto dom = chromium.out();
  const auto begin = dom.find("FOUND["), end = dom.find("]END");
  REQUIRE(end != std::string::npos);
  const auto found = nlohmann::json::parse(dom.substr(begin + 5, end + 1 - begin - 5));
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
