# Installs the library for users' programs as a CMake package: find_package(ddprun), targets ddprun::ddp, ::train, ::report
# and ::runtime.

# The public headers: <ddprun/runtime.h> and every header of ours it includes, as paths below worker/ddprun/, or include/ddprun/ for common/.
set(DDPRUN_PUBLIC_HEADERS runtime.h)
set(_queue runtime.h)
while(_queue)
  list(POP_FRONT _queue _header)
  find_file(_file ddprun/${_header} PATHS ${CMAKE_SOURCE_DIR}/worker ${CMAKE_SOURCE_DIR}/include NO_CACHE REQUIRED NO_DEFAULT_PATH)
  file(STRINGS ${_file} _lines REGEX "^#include <ddprun/")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_file})
  get_filename_component(_room ${_header} DIRECTORY)
  install(FILES ${_file} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ddprun/${_room})
  unset(_file)
  foreach(_line IN LISTS _lines)
    string(REGEX REPLACE ".*<ddprun/(.*)>.*" "\\1" _included "${_line}")
    if(NOT _included IN_LIST DDPRUN_PUBLIC_HEADERS)
      list(APPEND DDPRUN_PUBLIC_HEADERS ${_included})
      list(APPEND _queue ${_included})
    endif()
  endforeach()
endwhile()

set(_package ${CMAKE_INSTALL_LIBDIR}/cmake/ddprun)
set(_libraries common sinks report ddp train runtime)
foreach(_library IN LISTS _libraries)
  set_target_properties(ddprun_${_library} PROPERTIES EXPORT_NAME ${_library})
endforeach()
list(TRANSFORM _libraries PREPEND ddprun_)
install(TARGETS ${_libraries} EXPORT ddprunTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT ddprunTargets NAMESPACE ddprun:: DESTINATION ${_package})
install(FILES cmake/FindLibTorch.cmake cmake/FindLibzip.cmake cmake/FindLibdeflate.cmake DESTINATION ${_package})

include(CMakePackageConfigHelpers)
configure_package_config_file(cmake/ddprunConfig.cmake.in ${CMAKE_BINARY_DIR}/package/ddprunConfig.cmake
                              INSTALL_DESTINATION ${_package} PATH_VARS CMAKE_INSTALL_LIBDIR NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/ddprunConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/package/ddprunConfig.cmake ${CMAKE_BINARY_DIR}/package/ddprunConfigVersion.cmake DESTINATION ${_package})
