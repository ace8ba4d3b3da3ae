# LibTorch for the CPU, without its own CMake package (which wants a CUDA toolkit when it comes from a CUDA wheel).
#
# Looked for in CMAKE_PREFIX_PATH first (an unpacked libtorch, the torch folder of a wheel, or what Python's
# torch.utils.cmake_prefix_path says), then beside the folder LibTorch_BUILT_WITH, then where scripts/setup.sh puts it.
# Defines the target LibTorch::cpu and LibTorch_LIBRARY_DIR.
# Component Gloo: Gloo's headers too, which LibTorch's own for the Gloo backend include.

set(_supported 2.11 2.12 2.13 2.14 2.15 ${LibTorch_ALSO_TRY})  # those tested (scripts/try_libtorch.sh tries others)

if(DEFINED ENV{XDG_CACHE_HOME} AND NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
  set(_cache $ENV{XDG_CACHE_HOME}/ddprun)
else()
  set(_cache $ENV{HOME}/.cache/ddprun)
endif()
set(_setup_torch ${_cache}/libtorch-2.11.0/torch)

# A prefix given later, or another cache folder, must not be answered from what was found before.
set(_torch_hints ${_setup_torch})
if(LibTorch_BUILT_WITH)
  list(PREPEND _torch_hints ${LibTorch_BUILT_WITH}/..)
endif()
foreach(_prefix IN LISTS CMAKE_PREFIX_PATH)
  if(_prefix MATCHES "^(.*)/share/cmake/?$")  # torch.utils.cmake_prefix_path
    list(PREPEND _torch_hints ${CMAKE_MATCH_1})
  endif()
endforeach()
set(_searched "${CMAKE_PREFIX_PATH};${_torch_hints}")
if(NOT "${LibTorch_SEARCHED}" STREQUAL "${_searched}")
  unset(LibTorch_INCLUDE_DIR CACHE)
  unset(LibTorch_CPU_LIBRARY CACHE)
  unset(LibTorch_C10_LIBRARY CACHE)
endif()
set(LibTorch_SEARCHED "${_searched}" CACHE INTERNAL "where LibTorch was looked for")

find_path(LibTorch_INCLUDE_DIR torch/csrc/distributed/c10d/reducer.hpp HINTS ${_torch_hints} PATH_SUFFIXES include)
find_library(LibTorch_CPU_LIBRARY torch_cpu HINTS ${_torch_hints} PATH_SUFFIXES lib)
find_library(LibTorch_C10_LIBRARY c10 HINTS ${_torch_hints} PATH_SUFFIXES lib)
find_path(Gloo_INCLUDE_DIR gloo/rendezvous/store.h)

# Why it is not there: of the reasons that FindPackageHandleStandardArgs cannot tell.
unset(LibTorch_NOT_FOUND_MESSAGE)
set(LibTorch_IS_SUPPORTED TRUE)
if(NOT LibTorch_INCLUDE_DIR OR NOT LibTorch_CPU_LIBRARY OR NOT LibTorch_C10_LIBRARY)
  set(LibTorch_NOT_FOUND_MESSAGE
      "run scripts/setup.sh, pass -DCMAKE_PREFIX_PATH=<unpacked libtorch> (looked for \
torch/csrc/distributed/c10d/reducer.hpp and libtorch_cpu.so), or -DDDPRUN_WORKER=OFF for the launcher alone")
else()
  set(LibTorch_VERSION "another one")
  if(EXISTS ${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h)
    file(STRINGS ${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h _lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR) ")
    string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" LibTorch_VERSION "${_lines}")
  endif()
  if(NOT LibTorch_VERSION IN_LIST _supported)
    list(JOIN _supported ", " _expected)
    set(LibTorch_IS_SUPPORTED FALSE)
    set(LibTorch_NOT_FOUND_MESSAGE "expected LibTorch ${_expected}, found ${LibTorch_VERSION} in ${LibTorch_INCLUDE_DIR}")
  endif()
  get_filename_component(LibTorch_LIBRARY_DIR ${LibTorch_CPU_LIBRARY} DIRECTORY)
endif()
set(LibTorch_Gloo_FOUND ${Gloo_INCLUDE_DIR})
if(NOT Gloo_INCLUDE_DIR AND LibTorch_FIND_REQUIRED_Gloo AND NOT LibTorch_NOT_FOUND_MESSAGE)
  set(LibTorch_NOT_FOUND_MESSAGE "Gloo's headers not found: install libgloo-dev (looked for gloo/rendezvous/store.h)")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR LibTorch_IS_SUPPORTED
  VERSION_VAR LibTorch_VERSION HANDLE_COMPONENTS REASON_FAILURE_MESSAGE "${LibTorch_NOT_FOUND_MESSAGE}")
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY Gloo_INCLUDE_DIR)

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::cpu INTERFACE IMPORTED)
  set_target_properties(LibTorch::cpu PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS USE_DISTRIBUTED
    INTERFACE_LINK_LIBRARIES "${LibTorch_CPU_LIBRARY};${LibTorch_C10_LIBRARY}"
    # libtorch_cpu's own NVIDIA libraries are found through its RPATH; --disable-new-dtags makes ours count for it too.
    INTERFACE_LINK_OPTIONS "-Wl,--allow-shlib-undefined,--disable-new-dtags,-rpath,${LibTorch_LIBRARY_DIR}")
  if(Gloo_INCLUDE_DIR)
    target_include_directories(LibTorch::cpu INTERFACE ${Gloo_INCLUDE_DIR})
    target_compile_definitions(LibTorch::cpu INTERFACE USE_C10D_GLOO)
  endif()
endif()

unset(_supported)
unset(_cache)
unset(_setup_torch)
unset(_torch_hints)
unset(_searched)
unset(_lines)
unset(_expected)
unset(LibTorch_IS_SUPPORTED)
