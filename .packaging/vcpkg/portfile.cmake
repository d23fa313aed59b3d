# vcpkg, as an overlay: vcpkg install mlcore --overlay-ports=.packaging/vcpkg
# The sources are the checkout that this file is in. The package has no objects: mlcore::impl, a static
# or shared library, is compiled by the project that links it.
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../.." ABSOLUTE)
set(VCPKG_BUILD_TYPE release)
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}")
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/mlcore)
vcpkg_fixup_pkgconfig()
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
file(WRITE "${CURRENT_PACKAGES_DIR}/share/${PORT}/usage" "mlcore has CMake targets:

    find_package(mlcore CONFIG REQUIRED)
    target_link_libraries(main PRIVATE mlcore::impl)

")
