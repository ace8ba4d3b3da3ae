# Writes the headers that users include: <ddprun/NAME.h> for FOLDER/NAME.h of this tree, with its includes of other
# public headers rewritten, and <ddprun/runtime.h>, which includes all of them. See docs/decisions/0012-installed-headers.md.
#
# cmake -DSOURCE_DIR=... -DOUTPUT_DIR=... "-DHEADERS=common/errors.h;..." -P public_headers.cmake
cmake_minimum_required(VERSION 3.22)

function(write_if_changed path text)
  set(before "")
  if(EXISTS ${path})
    file(READ ${path} before)
  endif()
  if(NOT text STREQUAL before)
    file(WRITE ${path} "${text}")
  endif()
endfunction()

set(own_include "#include \"((common|worker)/[^\"]*)\"")
set(umbrella "#pragma once\n\n// The whole public interface of ddprun::runtime; each header may be included by itself too.\n")
foreach(header IN LISTS HEADERS)
  file(READ ${SOURCE_DIR}/${header} text)
  string(REGEX MATCHALL "${own_include}" includes "${text}")
  foreach(include IN LISTS includes)
    string(REGEX REPLACE "${own_include}" "\\1" included "${include}")
    if(NOT included IN_LIST HEADERS)
      message(FATAL_ERROR "${header}: includes ${included}, which was not there when this was configured: configure again")
    endif()
  endforeach()
  string(REGEX REPLACE "#include \"(common|worker)/([^\"]*/)?([^\"/]*)\"" "#include <ddprun/\\3>" text "${text}")
  get_filename_component(name ${header} NAME)
  write_if_changed(${OUTPUT_DIR}/${name} "${text}")
  string(APPEND umbrella "#include <ddprun/${name}>\n")
endforeach()
write_if_changed(${OUTPUT_DIR}/runtime.h "${umbrella}")
