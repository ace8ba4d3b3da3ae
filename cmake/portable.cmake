# Makes ddprun small, and runnable with any glibc of this version or later. PyTorch's wheels need the same.
# The launcher is compiled with -Os as always, which saves 0.8 MB of 4.
set(DDPRUN_GLIBC 2.28)

if(DDPRUN_WORKER OR DDPRUN_TESTS OR DDPRUN_SANITIZE)
  message(FATAL_ERROR "DDPRUN_PORTABLE builds ddprun alone: expected DDPRUN_WORKER and DDPRUN_TESTS OFF, no DDPRUN_SANITIZE")
endif()
target_compile_options(ddprun_options INTERFACE -ffunction-sections -fdata-sections)

find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(_stubs ${CMAKE_BINARY_DIR}/old_glibc)
set(_make_stubs ${CMAKE_SOURCE_DIR}/cmake/old_glibc/make_stubs.py)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_make_stubs})
execute_process(COMMAND ${Python3_EXECUTABLE} ${_make_stubs} ${CMAKE_CXX_COMPILER} ${DDPRUN_GLIBC} ${_stubs}
                COMMAND_ERROR_IS_FATAL ANY)

# ddprun_make_portable(TARGET): links it stripped, against the old glibc.
function(ddprun_make_portable target)
  target_sources(${target} PRIVATE ${CMAKE_SOURCE_DIR}/cmake/old_glibc/missing.cpp)
  target_link_options(${target} PRIVATE -s -L${CMAKE_BINARY_DIR}/old_glibc -Wl,--wrap=__libc_start_main
                      -Wl,--push-state,--no-as-needed,-lpthread,-ldl,--pop-state)
endfunction()
