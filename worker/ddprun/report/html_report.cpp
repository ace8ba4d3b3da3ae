#include <ddprun/report/html_report.h>

#include <ddprun/common/text.h>

namespace ddprun::report {
namespace {

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

std::string image_of(const Figure& figure) {
  return std::string("<img") + (figure.media_type == "image/svg+xml" ? " class=\"svg\"" : "") +
         (figure.width > 0 ? formatted(" width=\"%lld\"", static_cast<long long>(figure.width)) : "") +
         " alt=\"" + html_text(figure.description) + "\" src=\"data:" + html_text(figure.media_type) +
         ";base64," + base64(figure.bytes) + "\">";
}

/// The image with its texts, which grow and shrink with it.
std::string panel_of(const Figure& figure, const std::string& attributes = "") {
  auto html = formatted("<div class=\"panel\"%s style=\"--of:%lld\">", attributes.c_str(),
                        static_cast<long long>(figure.width)) +
              image_of(figure);
  for (const auto& text : figure.texts)
    html += formatted("<span%s style=\"--x:%g;--y:%g;--width:%g\">", text.wrong ? " class=\"wrong\"" : "",
                      text.x, text.y, text.width) +
            html_text(text.text) + "</span>";
  return html + "</div>";
}

/// Without JavaScript the last figure is shown, and no slider.
constexpr std::string_view kSliderScript = R"(
for (const figure of document.querySelectorAll(".epochs")) {
  const slider = figure.querySelector("input"), panels = [...figure.querySelectorAll(".panel")];
  const show = () => {
    panels.forEach((panel, i) => { panel.hidden = i !== Number(slider.value); });
    figure.querySelector("output").textContent = panels[slider.value].title;
    slider.setAttribute("aria-valuetext", panels[slider.value].title);
  };
  slider.oninput = show;
  slider.hidden = false;
  show();
}
)";

/// The figures of epochs, one of which is shown.
std::string slider(const HtmlReport& report) {
  std::vector<const Figure*> frames;
  for (const auto& figure : report.figures)
    if (!figure.epoch.empty()) frames.push_back(&figure);
  if (frames.empty()) return "";
  const auto last = frames.size() - 1;
  auto html = "<figure class=\"wide epochs\"><figcaption>Over the epochs: <output>" +
              html_text(frames[last]->epoch) + "</output></figcaption>" +
              formatted(
                  "<input type=\"range\" min=\"0\" max=\"%zu\" value=\"%zu\" hidden "
                  "autocomplete=\"off\" aria-label=\"epoch\">\n",
                  last, last);
  for (const auto* frame : frames)
    html += panel_of(*frame, " title=\"" + html_text(frame->epoch) + "\"" +
                                 (frame == frames[last] ? "" : " hidden")) +
            "\n";
  return html + "</figure>\n";
}

std::string figures(const HtmlReport& report, bool curves) {
  std::string html;
  for (const auto& figure : report.figures) {
    if (figure.curves != curves || !figure.epoch.empty()) continue;
    html += std::string(figure.width >= 1024 ? "<figure class=\"wide\">" : "<figure>") +
            (figure.title.empty() ? "" : element("figcaption", figure.title)) +
            (figure.texts.empty() ? image_of(figure) : panel_of(figure)) + "</figure>\n";
  }
  if (!curves) html += slider(report);
  if (html.empty()) return "";
  return element("h2", curves ? "Curves" : "Pictures") + "\n<div class=\"figures\">\n" + html + "</div>\n";
}

/// The JSON, escaped for a script element.
std::string script_data(std::string_view json) {
  std::string text;
  for (const char c : json) c == '<' ? text += "\\u003c" : text += c;
  return text;
}

std::string script(std::string_view attributes, std::string_view text) {
  return "<script" + std::string(attributes) + ">" + std::string(text) + "</script>\n";
}

std::string section(const Section& section) {
  if (section.rows.empty() && section.text.empty()) return "";
  const auto mark = section.colour < 0 ? ""
                                       : formatted("<i class=\"mark\" style=\"background:var(--c%d)\"></i>",
                                                   section.colour % 8);
  std::string html = "<h2>" + mark + html_text(section.title) + "</h2>\n";
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
  constexpr std::string_view kSpecial = "&<>\"'";
  constexpr const char* kEscapes[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string html;
  for (const char c : valid_utf8(text)) {
    const auto special = kSpecial.find(c);
    special == kSpecial.npos ? html += c : html += kEscapes[special];
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
  const bool interactive = !report.runs_json.empty() && !kDygraphsScript.empty();
  std::string html =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n";
  html += element("title", report.title + (report.subtitle.empty() ? "" : ": " + report.subtitle)) +
          "\n<style>\n" + std::string(interactive ? kDygraphsStyle : std::string_view()) +
          std::string(kPageStyle) + "</style>\n</head>\n<body>\n<main>\n";
  html += element("h1", report.title) + "\n";
  if (!report.subtitle.empty()) html += "<p class=\"subtitle\">" + html_text(report.subtitle) + "</p>\n";
  if (!report.notice.empty()) html += "<p id=\"notice\">" + html_text(report.notice) + "</p>\n";
  if (!report.command.empty()) html += "<pre class=\"command\">" + html_text(report.command) + "</pre>\n";
  html += highlights(report);
  const std::string charts = figures(report, true);
  html += interactive ? "<div id=\"charts\"></div>\n<noscript>\n" + charts + "</noscript>\n" : charts;
  html += figures(report, false);
  for (const auto& part : report.sections) html += section(part);
  html += "</main>\n";
  if (interactive)
    html += script(" type=\"application/json\" id=\"data\"", script_data(report.runs_json)) +
            script("", kDygraphsScript) + script("", kPageScript);
  if (html.find("class=\"wide epochs\"") != std::string::npos) html += script("", kSliderScript);
  return html + "</body>\n</html>\n";
}

}  // namespace ddprun::report
