# cmake --install BUILD --prefix DIR: the program, the library, its headers under nibble/, nibble::nibble, and nibble::mpi
# for programs with several ranks.
include(CMakePackageConfigHelpers)

install(TARGETS nibble_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS nibble nibble_mpi nibble_dependencies EXPORT nibble-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(room core quant adapters parallel recipes)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/nibble
          FILES_MATCHING PATTERN "*.h")
endforeach()
install(DIRECTORY recipes/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/nibble)
install(FILES recipes/published_models.json DESTINATION ${CMAKE_INSTALL_DATADIR}/nibble)
install(FILES nibble.h nibble_c.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/nibble)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/nibble)
install(EXPORT nibble-targets NAMESPACE nibble:: DESTINATION ${package_dir})
configure_package_config_file(cmake/nibble-config.cmake.in ${PROJECT_BINARY_DIR}/nibble-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/nibble-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/nibble-config.cmake ${PROJECT_BINARY_DIR}/nibble-config-version.cmake
        DESTINATION ${package_dir})

# What --help says, for man and for shells, asked of the program itself.
set(share "\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}")
install(CODE "
  set(ENV{OMP_NUM_THREADS} 1)
  execute_process(COMMAND ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:nibble_cli> man --out \"${share}/man/man1\" COMMAND_ERROR_IS_FATAL ANY)
  foreach(shell_file bash:bash-completion/completions/nibble zsh:zsh/vendor-completions/_nibble fish:fish/vendor_completions.d/nibble.fish)
    string(REPLACE \":\" \";\" parts \${shell_file})
    list(GET parts 0 shell)
    list(GET parts 1 file)
    get_filename_component(folder \"${share}/\${file}\" DIRECTORY)
    file(MAKE_DIRECTORY \${folder})
    execute_process(COMMAND ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:nibble_cli> completion \${shell} OUTPUT_FILE \"${share}/\${file}\" COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
")

# pkg-config --static is not needed: a static library brings nothing by itself, so everything is in Libs.
set(NIBBLE_PC_REQUIRES
    "libhwy sentencepiece oniguruma libxxhash zlib libzstd snappy gmp yaml-cpp icu-uc icu-i18n")
configure_file(cmake/nibble.pc.in ${PROJECT_BINARY_DIR}/nibble.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/nibble.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
