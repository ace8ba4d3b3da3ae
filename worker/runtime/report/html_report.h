#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ddprun::report {

/// A picture in the page.
struct Figure {
  std::string title;        ///< above it; may be empty
  std::string media_type;   ///< "image/png", "image/svg+xml"
  std::string bytes;        ///< the file
  std::string description;  ///< for those who cannot see it
};

/// A part of the page: a table, or text as it is (a configuration), or both.
struct Section {
  std::string title;
  std::vector<std::pair<std::string, std::string>> rows;
  std::string text;
};

struct HtmlReport {
  std::string title;                                            ///< "mnist"
  std::string subtitle;                                         ///< "2 ranks, 5 epochs, 21 November 2026"
  std::vector<std::pair<std::string, std::string>> highlights;  ///< few, shown large: {"accuracy", "99.1 %"}
  std::vector<Figure> figures;
  std::vector<Section> sections;
};

/// One HTML page that needs nothing else: no network, no script, pictures inside. Light or dark as the
/// reader's system is, and readable on a phone. Every text is escaped; bytes that are no UTF-8 are replaced.
std::string to_html(const HtmlReport& report);

}  // namespace ddprun::report
