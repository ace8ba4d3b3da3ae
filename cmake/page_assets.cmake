# What the report page consists of, as bytes of the library: our style and script, and dygraphs, which draws. dygraphs is a package of the
# distribution (libjs-dygraphs); without it the page has still pictures only.
#
# ddprun_page_assets(VARIABLE): sets it to the generated source.
function(ddprun_page_assets variable)
  set(_folder ${CMAKE_CURRENT_SOURCE_DIR}/ddprun/report)
  find_path(DYGRAPHS_FOLDER dygraph.min.js PATHS /usr/share/javascript/dygraphs NO_DEFAULT_PATH)
  if(DYGRAPHS_FOLDER)
    file(READ ${DYGRAPHS_FOLDER}/dygraph.min.js dygraphs_script)
    file(READ ${DYGRAPHS_FOLDER}/dygraph.min.css dygraphs_style)
    string(REGEX REPLACE "//# sourceMappingURL[^\n]*|/\\*# sourceMappingURL[^*]*\\*/" "" dygraphs_script "${dygraphs_script}")
    string(REGEX REPLACE "/\\*# sourceMappingURL[^*]*\\*/" "" dygraphs_style "${dygraphs_style}")
  else()
    message(STATUS "no libjs-dygraphs: report.html will have still pictures only")
  endif()
  file(READ ${_folder}/page.js page_script)
  file(READ ${_folder}/page.css page_style)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_folder}/page.js ${_folder}/page.css)
  configure_file(${CMAKE_SOURCE_DIR}/cmake/page_assets.cpp.in ${CMAKE_CURRENT_BINARY_DIR}/page_assets.cpp @ONLY)
  set(${variable} ${CMAKE_CURRENT_BINARY_DIR}/page_assets.cpp PARENT_SCOPE)
endfunction()
