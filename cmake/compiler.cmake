# Warnings, sanitizers and ccache for every target of this project.

add_library(ddprun_options INTERFACE)
# Our sources include the library's headers as users do, <ddprun/ROOM/NAME.h>: worker/ddprun/ is the library, include/ddprun/common is a link.
target_include_directories(ddprun_options INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/worker)
target_compile_options(ddprun_options INTERFACE -Wall -Wextra -Wnon-virtual-dtor -Woverloaded-virtual
                                                $<$<CXX_COMPILER_ID:GNU>:-Wshadow=local>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms of GCC 12 on "text" + string (GCC bug 105651).
  target_compile_options(ddprun_options INTERFACE -Wno-restrict -Wno-stringop-overflow -Wno-array-bounds)
endif()
if(DDPRUN_WERROR)
  target_compile_options(ddprun_options INTERFACE -Werror)
endif()
if(DDPRUN_SANITIZE)
  target_compile_options(ddprun_options INTERFACE -fsanitize=${DDPRUN_SANITIZE} -fno-omit-frame-pointer
                                                  -fno-sanitize-recover=all)
  target_link_options(ddprun_options INTERFACE -fsanitize=${DDPRUN_SANITIZE})
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # The precompiled header carries time stamps and macros that ccache must be told to overlook. A checkout in another folder
  # finds the same objects: no path of this one gets into them.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=true
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE_PROGRAM})
  target_compile_options(ddprun_options INTERFACE -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)
endif()

# ddprun_sources(VARIABLE ROOM...): the .cpp files of these folders.
function(ddprun_sources variable)
  set(sources)
  foreach(room IN LISTS ARGN)
    file(GLOB found CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${room}/*.cpp)
    if(NOT found)
      message(FATAL_ERROR "ddprun_sources: no sources in ${CMAKE_CURRENT_SOURCE_DIR}/${room}")
    endif()
    list(APPEND sources ${found})
  endforeach()
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()

# ddprun_unity(TARGET [BATCH N] [EXCEPT FILE...]): compiles N files at a time (12), so that LibTorch's templates are
# instantiated once for all of them: a third of the time. The files of EXCEPT stay by themselves.
function(ddprun_unity target)
  cmake_parse_arguments(ARG "" "BATCH" "EXCEPT" ${ARGN})
  if(NOT DDPRUN_UNITY)
    return()
  endif()
  if(NOT ARG_BATCH)
    set(ARG_BATCH 12)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${ARG_BATCH})
  # A coroutine's frame holds types of its file's anonymous namespace; GCC allows that in the main file only.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  set_source_files_properties(${ARG_EXCEPT} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
