# libddprun_cuda.so: NCCL and the CUDA tensors of Gloo, loaded at run time when a GPU is asked for; the programs are
# never linked to it. Host code only: it needs headers of the CUDA runtime and of NCCL, from NVIDIA's wheels beside
# torch's (scripts/setup.sh --cuda) or from a toolkit, and no nvcc.

get_filename_component(_site_packages ${LibTorch_LIBRARY_DIR}/../.. ABSOLUTE)
file(GLOB _nvidia_includes ${_site_packages}/nvidia/*/include)
find_path(CUDA_RUNTIME_INCLUDE_DIR cuda_runtime_api.h HINTS ${_nvidia_includes} PATHS /usr/local/cuda/include)
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${_nvidia_includes} PATHS /usr/local/cuda/include)
find_library(LibTorch_CUDA_LIBRARY torch_cuda HINTS ${LibTorch_LIBRARY_DIR} NO_DEFAULT_PATH)
find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda HINTS ${LibTorch_LIBRARY_DIR} NO_DEFAULT_PATH)
mark_as_advanced(CUDA_RUNTIME_INCLUDE_DIR NCCL_INCLUDE_DIR LibTorch_CUDA_LIBRARY LibTorch_C10_CUDA_LIBRARY)

# A driver that is too old for the CUDA of this build is told from one that will do before anything is loaded.
set(_cuda_version 0)
if(CUDA_RUNTIME_INCLUDE_DIR AND LibTorch_CUDA_LIBRARY)
  file(STRINGS ${CUDA_RUNTIME_INCLUDE_DIR}/cuda_runtime_api.h _cuda_version REGEX "^#define CUDART_VERSION +[0-9]+")
  string(REGEX REPLACE "[^0-9]" "" _cuda_version "${_cuda_version}")
endif()

# The plug-in and the program that loads it pass each other C++ objects: they must come from one build of one LibTorch.
set_source_files_properties(ddprun/group/cuda_backend.cpp ddprun/group/cuda_plugin.cpp PROPERTIES COMPILE_DEFINITIONS
  "DDPRUN_CUDA_PLUGIN_BUILD=\"${PROJECT_VERSION}+torch${LibTorch_VERSION}\";DDPRUN_CUDA_PLUGIN_FOLDER=\"${CMAKE_INSTALL_LIBDIR}\";DDPRUN_CUDA_VERSION=${_cuda_version}")
set_source_files_properties(ddprun/group/cuda_backend.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON)

if(NOT CUDA_RUNTIME_INCLUDE_DIR OR NOT NCCL_INCLUDE_DIR OR NOT LibTorch_CUDA_LIBRARY OR NOT LibTorch_C10_CUDA_LIBRARY)
  message(STATUS "CUDA plug-in: not built (looked for cuda_runtime_api.h, nccl.h and libtorch_cuda.so; "
                 "scripts/setup.sh --cuda fetches them)")
  return()
endif()
message(STATUS "CUDA plug-in: built with ${CUDA_RUNTIME_INCLUDE_DIR} and ${NCCL_INCLUDE_DIR}")

add_library(ddprun_cuda MODULE ddprun/group/cuda_plugin.cpp)
target_include_directories(ddprun_cuda SYSTEM PRIVATE ${CUDA_RUNTIME_INCLUDE_DIR} ${NCCL_INCLUDE_DIR})
target_compile_definitions(ddprun_cuda PRIVATE USE_C10D_NCCL)
target_link_libraries(ddprun_cuda PRIVATE ddprun_options LibTorch::cpu ${LibTorch_CUDA_LIBRARY} ${LibTorch_C10_CUDA_LIBRARY})
# --no-as-needed: libtorch_cuda registers itself when it is loaded, whether or not a symbol of it is used here.
target_link_options(ddprun_cuda PRIVATE -Wl,--no-as-needed -Wl,--unresolved-symbols=ignore-in-shared-libs)
set_target_properties(ddprun_cuda PROPERTIES
  CXX_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/${CMAKE_INSTALL_LIBDIR}
  INSTALL_RPATH ${LibTorch_LIBRARY_DIR})
# Optional: not every build has it (scripts/build.sh --programs).
install(TARGETS ddprun_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL)
