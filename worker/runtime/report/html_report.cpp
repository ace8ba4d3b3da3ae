#include <ddprun/report/html_report.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <ddprun/common/text.h>

namespace ddprun::report {
namespace {

constexpr std::string_view kStyle = R"css(
:root { color-scheme: light dark; --ground: #fff; --text: #1c2024; --quiet: #60666d; --line: #dfe2e6; --box: #f6f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #16191d; --text: #e6e8ea; --quiet: #9aa1a9; --line: #343a41; --box: #1f2329; }
  img.svg { filter: invert(0.88) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 72rem; background: var(--ground); color: var(--text);
       font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { margin: 0; font-size: 1.7rem; line-height: 1.25; }
h2 { margin: 2.5rem 0 0.75rem; font-size: 1.2rem; }
.subtitle { margin: 0.25rem 0 0; color: var(--quiet); }
.highlights { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: 0.75rem;
              margin: 1.5rem 0 0; }
.highlights div { padding: 0.6rem 0.8rem; border: 1px solid var(--line); border-radius: 6px; background: var(--box); }
.highlights dt { color: var(--quiet); font-size: 0.85rem; }
.highlights dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1.25rem; }
figure { margin: 0; }
figcaption { margin-bottom: 0.4rem; color: var(--quiet); font-size: 0.9rem; }
img { display: block; max-width: 100%; height: auto; }
img.svg { width: 100%; }
table { width: 100%; border-collapse: collapse; }
th, td { padding: 0.35rem 0.6rem 0.35rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { width: 32%; color: var(--quiet); font-weight: normal; }
pre { margin: 0; padding: 0.8rem 1rem; overflow-x: auto; border: 1px solid var(--line); border-radius: 6px;
      background: var(--box); font: 0.85rem/1.45 ui-monospace, monospace; overflow-wrap: normal; }
table + pre { margin-top: 1rem; }
@media (max-width: 40rem) { th { width: 46%; } }
)css";

std::string element(const char* name, std::string_view text) {
  return "<" + std::string(name) + ">" + html_text(text) + "</" + name + ">";
}

std::string highlights(const HtmlReport& report) {
  if (report.highlights.empty()) return "";
  std::string html = "<dl class=\"highlights\">\n";
  for (const auto& [name, value] : report.highlights)
    html += "<div>" + element("dt", name) + element("dd", value) + "</div>\n";
  return html + "</dl>\n";
}

std::string figures(const HtmlReport& report) {
  if (report.figures.empty()) return "";
  std::string html = "<h2>Figures</h2>\n<div class=\"figures\">\n";
  for (const auto& figure : report.figures) {
    const bool svg = figure.media_type == "image/svg+xml";
    html += "<figure>" + (figure.title.empty() ? "" : element("figcaption", figure.title)) + "<img" +
            (svg ? " class=\"svg\"" : "") + " alt=\"" + html_text(figure.description) +
            "\" src=\"data:" + html_text(figure.media_type) + ";base64," + base64(figure.bytes) +
            "\"></figure>\n";
  }
  return html + "</div>\n";
}

std::string section(const Section& section) {
  if (section.rows.empty() && section.text.empty()) return "";
  std::string html = element("h2", section.title) + "\n";
  if (!section.rows.empty()) {
    html += "<table>\n";
    for (const auto& [name, value] : section.rows)
      html += "<tr><th scope=\"row\">" + html_text(name) + "</th>" + element("td", value) + "</tr>\n";
    html += "</table>\n";
  }
  if (!section.text.empty()) html += "<pre tabindex=\"0\">" + html_text(section.text) + "</pre>\n";
  return html;
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string html;
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default:
        html += c;
    }
  }
  return html;
}

std::string base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](std::size_t j) {
      return j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0U;
    };
    const unsigned three = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    for (std::size_t digit = 0; digit < 4; ++digit)
      text += i + digit > bytes.size() ? '=' : kDigits[three >> (18 - 6 * digit) & 63];
  }
  return text;
}

std::string to_html(const HtmlReport& report) {
  std::string html =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n";
  html += element("title", report.title) + "\n<style>" + std::string(kStyle) +
          "</style>\n</head>\n<body>\n<main>\n";
  html += element("h1", report.title) + "\n";
  if (!report.subtitle.empty()) html += "<p class=\"subtitle\">" + html_text(report.subtitle) + "</p>\n";
  html += highlights(report) + figures(report);
  for (const auto& part : report.sections) html += section(part);
  return html + "</main>\n</body>\n</html>\n";
}

}  // namespace ddprun::report
