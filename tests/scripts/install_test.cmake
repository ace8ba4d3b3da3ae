# Installs the build into an empty folder and runs the installed programs. -DBUILD_DIR=... -DPREFIX=...
file(REMOVE_RECURSE ${PREFIX})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}: exit status ${status}\n${output}")
  endif()
  message("${output}")
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${PREFIX})
run(${PREFIX}/bin/ddprun --version)
if(WORKER)
  run(${PREFIX}/bin/ddprun --nproc-per-node=2 ${PREFIX}/bin/worker --version)
endif()
file(REMOVE_RECURSE ${PREFIX})
