# Installs the library for programs of one's own, as a CMake package: find_package(ddprun), target ddprun::runtime.

# The public headers, by their places in this tree; each is installed as <ddprun/NAME.h>, and so is what they include.
set(DDPRUN_PUBLIC_HEADERS
  common/error_file.h
  common/errors.h
  common/heartbeat.h
  common/logging.h
  common/worker_env.h
  worker/data/dataset.h
  worker/data/distributed_sampler.h
  worker/data/loader.h
  worker/ddp/collectives.h
  worker/ddp/comm_hooks.h
  worker/ddp/cuda_backend.h
  worker/ddp/distributed_data_parallel.h
  worker/ddp/flight_dump.h
  worker/ddp/flight_recorder.h
  worker/ddp/fully_sharded.h
  worker/ddp/missing_ranks.h
  worker/ddp/nan_check.h
  worker/ddp/powersgd_hook.h
  worker/ddp/process_group.h
  worker/ddp/record_collectives.h
  worker/ddp/signal_thread.h
  worker/ddp/spawn.h
  worker/ddp/sync_batch_norm.h
  worker/ddp/zero_optimizer.h
  worker/report/csv_sink.h
  worker/report/jsonl_sink.h
  worker/report/tensorboard_sink.h
  worker/run_worker.h
  worker/serialize/pt_file.h
  worker/serialize/safetensors.h
  worker/train/checkpoint.h
  worker/train/optimizer_state.h
  worker/train/state_dict_file.h)

# Appends to the list what its headers include of this tree.
function(ddprun_close_over_includes list)
  set(headers ${${list}})
  set(queue ${headers})
  while(queue)
    list(POP_FRONT queue header)
    file(STRINGS ${CMAKE_SOURCE_DIR}/${header} lines REGEX "^#include \"(common|worker)/")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE ".*\"(.*)\".*" "\\1" included "${line}")
      if(NOT included IN_LIST headers)
        list(APPEND headers ${included})
        list(APPEND queue ${included})
      endif()
    endforeach()
  endwhile()
  set(${list} ${headers} PARENT_SCOPE)
endfunction()
ddprun_close_over_includes(DDPRUN_PUBLIC_HEADERS)

set(_folder ${CMAKE_BINARY_DIR}/include/ddprun)
set(_made ${_folder}/runtime.h)
foreach(_header IN LISTS DDPRUN_PUBLIC_HEADERS)
  get_filename_component(_name ${_header} NAME)
  if(${_folder}/${_name} IN_LIST _made)
    message(FATAL_ERROR "two public headers are called ${_name}")
  endif()
  list(APPEND _made ${_folder}/${_name})
  list(APPEND _sources ${CMAKE_SOURCE_DIR}/${_header})
endforeach()
add_custom_command(
  OUTPUT ${_made}
  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${CMAKE_SOURCE_DIR} -DOUTPUT_DIR=${_folder} "-DHEADERS=${DDPRUN_PUBLIC_HEADERS}"
          -P ${CMAKE_SOURCE_DIR}/cmake/public_headers.cmake
  DEPENDS ${_sources} ${CMAKE_SOURCE_DIR}/cmake/public_headers.cmake
  COMMENT "Writing the public headers" VERBATIM)
add_custom_target(ddprun_public_headers DEPENDS ${_made})
add_dependencies(ddprun_runtime ddprun_public_headers)  # whoever builds the library can install it

set(_package ${CMAKE_INSTALL_LIBDIR}/cmake/ddprun)
set_target_properties(ddprun_common PROPERTIES EXPORT_NAME common)
set_target_properties(ddprun_report PROPERTIES EXPORT_NAME report)
set_target_properties(ddprun_runtime PROPERTIES EXPORT_NAME runtime)
install(TARGETS ddprun_common ddprun_report ddprun_runtime EXPORT ddprunTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT ddprunTargets NAMESPACE ddprun:: DESTINATION ${_package})
install(FILES ${_made} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ddprun)
install(FILES cmake/FindCairo.cmake cmake/FindLibTorch.cmake cmake/FindLibzip.cmake DESTINATION ${_package})

include(CMakePackageConfigHelpers)
configure_package_config_file(cmake/ddprunConfig.cmake.in ${CMAKE_BINARY_DIR}/ddprunConfig.cmake
                              INSTALL_DESTINATION ${_package} PATH_VARS CMAKE_INSTALL_LIBDIR NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/ddprunConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/ddprunConfig.cmake ${CMAKE_BINARY_DIR}/ddprunConfigVersion.cmake DESTINATION ${_package})
