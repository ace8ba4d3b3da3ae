#pragma once

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include <ddprun/image/image_files.h>
#include <ddprun/report/html_report.h>
#include "tests/support/catch.h"
#include "tests/support/child.h"

namespace ddprun::test {

/// The path of Chromium; skips the test without one.
inline std::string browser() {
  const char* path = std::getenv("PATH");
  for (const char* name : {"chromium", "google-chrome", "chromium-browser"})
    for (const std::filesystem::path folder : split(path == nullptr ? "" : path, ':'))
      if (std::filesystem::exists(folder / name)) return folder / name;
  skip("no chromium");
}

/// A page that shows the report in frames of these widths and then lists their contents.
inline std::string page_of_frames(const std::string& html, const std::vector<int>& widths) {
  std::string page = "<!doctype html><meta charset=utf-8><link rel=icon href=data:,>\n";
  for (const int width : widths)
    page += "<iframe style='border:0;height:800px;width:" + std::to_string(width) + "px' srcdoc=\"" +
            report::html_text(html) + "\"></iframe>\n";
  return page + R"(<pre id=found></pre><script>
// As a reader does.
const use = page => {
  const first = page.querySelector('.legend button');
  if (!first) return {};
  first.click();
  const set = (name, change, event) => {
    const input = page.querySelector(`[name=${name}]`);
    change(input);
    input.dispatchEvent(new Event(event));
  };
  set('smoothing', input => { input.value = 0.5; }, 'input');
  set('log', input => { input.checked = true; }, 'change');
  const notes = [...page.querySelectorAll('.note')].map(note => note.parentNode.firstChild.textContent + ': ' + note.textContent);
  if (page.querySelector('[name=axis]').options.length > 1) set('axis', input => { input.value = 'epoch'; }, 'change');
  const labels = [...page.querySelector('.plot').querySelectorAll('.dygraph-axis-label-x')].map(label => label.textContent);
  return {notes, labels, pressed: [...page.querySelectorAll('.legend button')].map(button => button.getAttribute('aria-pressed')),
          series: [...page.querySelectorAll('.legend button')].map(button => button.textContent)};
};
// How many pixels of its chart show a curve's colour.
const ink = button => {
  const canvas = button.closest('.chart').querySelector('canvas'), colour = button.querySelector('path').getAttribute('stroke');
  const copy = Object.assign(document.createElement('canvas'), {width: canvas.width, height: canvas.height});
  const context = copy.getContext('2d', {willReadFrequently: true});
  context.drawImage(canvas, 0, 0);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let i = 0; i < pixels.length; i += 4)
    count += [0, 1, 2].every(j => pixels[i + j] === parseInt(colour.slice(1 + 2 * j, 3 + 2 * j), 16)) && pixels[i + 3] === 255;
  return count;
};
// How many pixels of a chart a band between ranks has.
const shaded = canvas => {
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let i = 3; i < pixels.length; i += 4) count += pixels[i] > 30 && pixels[i] < 60;
  return count;
};
window.onload = () => {
  const found = [...document.querySelectorAll('iframe')].map(frame => {
    const page = frame.contentDocument, images = [...page.images];
    return {title: page.title, heading: page.querySelector('h1').textContent,
            text: page.body.textContent, seen: page.body.innerText, alts: images.map(image => image.alt), images: images.length,
            charts: [...page.querySelectorAll('.chart h3')].map(heading => heading.textContent),
            drawn: [...page.querySelectorAll('.plot')].every(plot => plot.querySelector('canvas')),
            series: [...page.querySelectorAll('.legend button')].map(button => button.textContent),
            cards: [...page.querySelectorAll('.chart .highlights div')].map(card => card.textContent),
            curves: [...page.querySelectorAll('.legend button')].map(button => button.querySelector('i').innerHTML),
            marks: [...page.querySelectorAll('.mark')].map(mark => mark.parentNode.textContent + ' ' + mark.style.background),
            ink: [...page.querySelectorAll('.legend button')].map(ink),
            shaded: [...page.querySelectorAll('.plot')].map(plot => shaded(plot.querySelector('canvas'))),
            after: use(page),
            loaded: images.every(image => image.complete && image.naturalWidth > 0),
            width: page.documentElement.clientWidth, needed: page.documentElement.scrollWidth,
            requests: frame.contentWindow.performance.getEntriesByType('resource')
                        .filter(entry => !entry.name.startsWith('data:')).length};
  });
  document.getElementById('found').textContent = 'FOUND' +
    JSON.stringify(found).replace(/[<>&]/g, c => '\\u00' + c.charCodeAt(0).toString(16)) + 'END';
};
</script>)";
}

/// Shows the page in frames of these widths and checks that the browser reports no error. Skips the test
/// without Chromium.
///
/// returns  for each frame: title, heading, text (with the script), the text `seen`, images, their alts,
/// whether they are loaded, the frame's
///          width, the width needed, how many requests went elsewhere, the charts, whether they are drawn,
///          their series with the last values, the samples of their lines, the `marks` of runs, how many
///          pixels have their colours, how many of each chart are `shaded`, single values (`cards`), and what
///          becomes of these `after` a click on the first, smoothing, log scale and epochs as the axis
inline nlohmann::json shown_in_browser(const std::string& html, const std::vector<int>& widths) {
  const auto program = browser();
  const TempDir dir;
  write_file_atomic(dir.path() / "page.html", page_of_frames(html, widths));
  Child chromium(
      {.argv = {program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--disable-breakpad", "--user-data-dir=" + (dir.path() / "profile").string(),
                "--enable-logging=stderr", "--dump-dom", "file://" + (dir.path() / "page.html").string()},
       .env = {{"HOME", dir.path().string()}}});
  const auto status = chromium.wait(std::chrono::seconds(100));
  REQUIRE(status == ExitStatus::exited(0));
  CHECK_THAT(chromium.err(), !ContainsSubstring("CONSOLE"));
  const auto dom = chromium.out();
  const auto begin = dom.find("FOUND["), end = dom.find("]END");
  REQUIRE(end != std::string::npos);
  return nlohmann::json::parse(dom.substr(begin + 5, end + 1 - begin - 5));
}

/// What the page looks like, in light or dark mode.
inline image::Image screenshot(const std::string& html, bool dark) {
  const auto program = browser();
  const TempDir dir;
  write_file_atomic(dir.path() / "page.html", html);
  Child chromium({.argv = {program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                           "--disable-breakpad", "--user-data-dir=" + (dir.path() / "profile").string(),
                           "--hide-scrollbars", "--window-size=600,600",
                           "--blink-settings=preferredColorScheme=" + std::string(dark ? "0" : "1"),
                           "--screenshot=" + (dir.path() / "page.png").string(),
                           "file://" + (dir.path() / "page.html").string()},
                  .env = {{"HOME", dir.path().string()}}});
  REQUIRE(chromium.wait(std::chrono::seconds(100)) == ExitStatus::exited(0));
  return image::read_png(dir.path() / "page.png");
}

}  // namespace ddprun::test
