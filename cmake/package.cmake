# The library for others: all modules but the program in one archive, the public header, and a CMake package
# (examples/library uses it). cmake --install puts them in place.
include(GNUInstallDirs)

set(package_dir ${CMAKE_BINARY_DIR}/package)
set(package_archive ${package_dir}/libsignalbox.a)
set(package_targets base tensor mesh comm ops a2a moe plan model cache engine text server)
list(TRANSFORM package_targets PREPEND signalbox_)
set(signalbox_link_options)
if(TARGET xgrammar)
  list(APPEND package_targets xgrammar)
  get_target_property(signalbox_link_options xgrammar INTERFACE_LINK_OPTIONS)
endif()
set(package_script "create ${package_archive}\n")
foreach(target ${package_targets})
  string(APPEND package_script "addlib $<TARGET_FILE:${target}>\n")
endforeach()
file(GENERATE OUTPUT ${package_dir}/libsignalbox.mri CONTENT "${package_script}save\nend\n")
add_custom_command(OUTPUT ${package_archive}
                   COMMAND ${CMAKE_COMMAND} -E rm -f ${package_archive}
                   COMMAND ${CMAKE_AR} -M < ${package_dir}/libsignalbox.mri
                   DEPENDS ${package_targets} ${package_dir}/libsignalbox.mri)
add_custom_target(signalbox_package ALL DEPENDS ${package_archive})

# From where the package file lies.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_INCLUDEDIR
           BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/cmake/signalbox OUTPUT_VARIABLE signalbox_include)
configure_file(${CMAKE_CURRENT_LIST_DIR}/signalbox-config.cmake.in ${package_dir}/signalbox-config.cmake @ONLY)
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${package_dir}/signalbox-config-version.cmake COMPATIBILITY SameMinorVersion)

install(FILES ${package_archive} DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES src/signalbox/server/signalbox.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/signalbox/server)
install(FILES src/signalbox/base/status.h src/signalbox/base/check.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/signalbox/base)
install(FILES ${package_dir}/signalbox-config.cmake ${package_dir}/signalbox-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/signalbox)
install(TARGETS signalbox DESTINATION ${CMAKE_INSTALL_BINDIR})
