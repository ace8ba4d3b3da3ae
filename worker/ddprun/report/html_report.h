#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddprun::report {

/// Escapes untrusted text for an element or a double-quoted attribute: &, <, > and both quotes; invalid UTF-8
/// and control characters other than tab and line end become U+FFFD.
std::string html_text(std::string_view text);

/// RFC 4648, section 4.
std::string base64(std::string_view bytes);

/// Text over a figure: centred in `width`, from y downwards; the measures are those of Figure::width. May
/// have several lines.
struct FigureText {
  double x = 0, y = 0, width = 0;
  std::string text;
  bool wrong = false;  ///< in red
};

struct Figure {
  std::string title;        ///< above it; may be empty
  std::string media_type;   ///< "image/png", "image/svg+xml"
  std::string bytes;        ///< the file
  std::string description;  ///< the alternative text
  std::int64_t width = 0;   ///< on the page; 0: its width in pixels
  std::vector<FigureText> texts = {};
  bool curves = false;     ///< shown only where page.js does not draw them
  std::string epoch = {};  ///< "epoch 24": figures that have one are shown in one place, with a slider
};

/// A part of the page: a table, preformatted text (a configuration), or both.
struct Section {
  std::string title;
  std::vector<std::pair<std::string, std::string>> rows;
  std::string text;
  int colour = -1;  ///< of the run that it is about, before the title; -1: none
};

struct HtmlReport {
  std::string title;     ///< "mnist"
  std::string subtitle;  ///< "2026-11-21 14:03 UTC, 2 ranks"
  std::string command;   ///< what was run
  std::string notice;    ///< "running, as of 14:03:05 UTC": if set, the page reloads every 5 s
  std::vector<std::pair<std::string, std::string>> highlights;  ///< few, shown large: {"accuracy", "99.1 %"}
  /// What page.js draws: {"runs": [{"name", "columns": {"step": [...], ...}, "time": {...}, "config"}]};
  /// empty: only the figures. With JavaScript disabled, and in a build without dygraphs, figures show the
  /// curves.
  std::string runs_json;
  std::vector<Figure> figures;
  std::vector<Section> sections;
};

// Generated from page.js, page.css and dygraphs when the build is configured (cmake/page_assets.cmake).
extern const std::string_view kDygraphsScript;  ///< empty: the build had no dygraphs
extern const std::string_view kDygraphsStyle, kPageScript, kPageStyle;

/// A self-contained HTML page: pictures and scripts inside, no network. Light or dark like the reader's
/// system, readable on a phone. Escapes every text and replaces invalid UTF-8.
std::string to_html(const HtmlReport& report);

}  // namespace ddprun::report
