# The package of ddprun alone: cpack --config <build folder>/CPackConfig.cmake, as scripts/package.sh does.

set(DDPRUN_CONTACT "The ddprun developers <ddprun@packages.invalid>" CACHE STRING "Maintainer of the Debian package")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT ${DDPRUN_CONTACT})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGE_DESCRIPTION
"ddprun starts the processes of a training job, on one machine or several,
with the environment that torchrun gives its workers, ends all of them when
one fails, names the cause, and leaves nothing behind. It runs any program,
in Python or not, and needs neither Python nor PyTorch itself.")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= ${DDPRUN_GLIBC})")
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/packaging/debian_layout.cmake)

string(TIMESTAMP _date "%a, %d %b %Y %H:%M:%S +0000" UTC)
configure_file(packaging/changelog.in ${CMAKE_BINARY_DIR}/changelog.Debian @ONLY)
if(NOT SKBUILD)
  install(FILES packaging/copyright ${CMAKE_BINARY_DIR}/changelog.Debian DESTINATION ${CMAKE_INSTALL_DOCDIR})
  install(FILES CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME changelog)
endif()
include(CPack)
