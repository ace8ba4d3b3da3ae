# libzip, as the target Libzip::zip. Its own CMake package also requires its command line tools (Debian bug), which
# nothing here needs.
find_path(LIBZIP_INCLUDE_DIR zip.h)
find_library(LIBZIP_LIBRARY zip)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libzip REQUIRED_VARS LIBZIP_LIBRARY LIBZIP_INCLUDE_DIR)
mark_as_advanced(LIBZIP_INCLUDE_DIR LIBZIP_LIBRARY)

if(Libzip_FOUND AND NOT TARGET Libzip::zip)
  add_library(Libzip::zip UNKNOWN IMPORTED)
  set_target_properties(Libzip::zip PROPERTIES
    IMPORTED_LOCATION "${LIBZIP_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${LIBZIP_INCLUDE_DIR}")
endif()
