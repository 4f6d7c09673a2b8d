# cmake --install BUILD --prefix DIR: the program, the library, its headers under nibble/, and nibble::nibble.
include(CMakePackageConfigHelpers)

install(TARGETS nibble_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS nibble nibble_dependencies EXPORT nibble-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(room core quant adapters parallel recipes)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/nibble
          FILES_MATCHING PATTERN "*.h")
endforeach()
install(DIRECTORY recipes/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/nibble)
install(FILES nibble.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/nibble)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/nibble)
install(EXPORT nibble-targets NAMESPACE nibble:: DESTINATION ${package_dir})
configure_package_config_file(cmake/nibble-config.cmake.in ${PROJECT_BINARY_DIR}/nibble-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/nibble-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/nibble-config.cmake ${PROJECT_BINARY_DIR}/nibble-config-version.cmake
        DESTINATION ${package_dir})
