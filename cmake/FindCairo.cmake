# Cairo, as the target Cairo::cairo. A program that draws nothing does not link it, and so does not load the twenty
# libraries it depends on.
find_path(CAIRO_INCLUDE_DIR cairo.h PATH_SUFFIXES cairo)
find_library(CAIRO_LIBRARY cairo)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Cairo REQUIRED_VARS CAIRO_LIBRARY CAIRO_INCLUDE_DIR)
mark_as_advanced(CAIRO_INCLUDE_DIR CAIRO_LIBRARY)

if(Cairo_FOUND AND NOT TARGET Cairo::cairo)
  add_library(Cairo::cairo INTERFACE IMPORTED)
  set_target_properties(Cairo::cairo PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${CAIRO_INCLUDE_DIR}"
    # One word, so that nothing comes between its parts.
    INTERFACE_LINK_LIBRARIES "-Wl,--push-state,--as-needed,${CAIRO_LIBRARY},--pop-state")
endif()
