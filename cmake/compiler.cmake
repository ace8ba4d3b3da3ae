# Warnings, sanitizers and ccache: what every target of this project is compiled with.

add_library(ddprun_options INTERFACE)
target_include_directories(ddprun_options INTERFACE ${CMAKE_SOURCE_DIR})
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
  # The precompiled header carries time stamps and macros that ccache must be told to overlook.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE_PROGRAM})
endif()
