#pragma once

#include <string_view>

namespace ddprun::report {

// Generated from page.js, page.css and dygraphs when the build is configured (cmake/page_assets.cmake).

extern const std::string_view kDygraphsScript;  ///< empty: the build had no dygraphs
extern const std::string_view kDygraphsStyle, kPageScript, kPageStyle;

}  // namespace ddprun::report
