# CPack runs this on the installed files before it packs them, to move what Debian places differently than cmake --install.
set(share ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr/share)
file(RENAME ${share}/zsh/site-functions ${share}/zsh/vendor-completions)
file(GLOB texts ${share}/man/man1/*.1 ${share}/doc/ddprun/changelog*)
execute_process(COMMAND gzip -9n ${texts} COMMAND_ERROR_IS_FATAL ANY)
