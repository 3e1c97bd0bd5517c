# `cmake --install`: the program, the library, its headers, a CMake package, and MLX, as a tree that can be moved:
#
#   bin/memoir
#   include/memoir/            headers
#   lib/libmemoir.so           lib/cmake/memoir/: the package
#   lib/memoir/mlx/            MLX as its wheel lays it out: lib, include, share/cmake/MLX
#   lib/memoir/mlx_cpu.libs/   what libmlx needs, where its own relative RPATH looks
#
# Every path in it is relative: RPATHs to the file ($ORIGIN), CMake files to themselves.
include(CMakePackageConfigHelpers)

set(_mlx_prefix ${CMAKE_INSTALL_LIBDIR}/memoir/mlx)
set(_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/memoir)

if(APPLE)
  set(_origin "@loader_path")
else()
  set(_origin "$ORIGIN")
endif()
file(RELATIVE_PATH _bin_to_lib /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
set_target_properties(memoir PROPERTIES INSTALL_RPATH "${_origin}/memoir/mlx/lib")
set_target_properties(memoir_cli PROPERTIES
  INSTALL_RPATH "${_origin}/${_bin_to_lib};${_origin}/${_bin_to_lib}/memoir/mlx/lib")
if(NOT MEMOIR_INSTALL_MLX)
  # MLX stays where it is, so that is where to look for it.
  set_target_properties(memoir memoir_cli PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
endif()

install(TARGETS memoir EXPORT memoirTargets)
install(TARGETS memoir_cli)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/memoir/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/memoir
        FILES_MATCHING PATTERN "*.h"
        PATTERN cli EXCLUDE
        PATTERN server/connection.h EXCLUDE
        PATTERN server/crowd.h EXCLUDE
        PATTERN server/request_body.h EXCLUDE
        # What only the sources beside it include.
        PATTERN "text/jinja_*.h" EXCLUDE
        REGEX "/text/(json_node|tokenizer_parts|tokenizer_components|gguf_pretokenizers)\\.h$" EXCLUDE
        REGEX "/kernels/cpu/(.*_impl|simd_.*|kernel_sets|pause|pieces|scratch)\\.h$" EXCLUDE)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(EXPORT memoirTargets NAMESPACE memoir:: DESTINATION ${_package_dir})
get_target_property(MEMOIR_LIBRARY_TYPE memoir TYPE)
configure_file(${PROJECT_SOURCE_DIR}/cmake/memoirConfig.cmake.in ${PROJECT_BINARY_DIR}/cmake/memoirConfig.cmake @ONLY)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/memoirConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cmake/memoirConfig.cmake ${PROJECT_BINARY_DIR}/cmake/memoirConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/MemoirOpenBLAS.cmake
        DESTINATION ${_package_dir})

if(MEMOIR_INSTALL_MLX)
  # MLX_DIR is PREFIX/share/cmake/MLX, in a wheel and elsewhere. Named piece by piece: PREFIX may be /usr/local.
  cmake_path(SET _mlx_source NORMALIZE "${MLX_DIR}/../../..")
  file(GLOB _mlx_beside ${_mlx_source}/lib/*.metallib ${_mlx_source}/lib/libjaccl*)
  install(FILES $<TARGET_FILE:mlx> ${_mlx_beside} DESTINATION ${_mlx_prefix}/lib)
  install(DIRECTORY ${MLX_DIR}/ DESTINATION ${_mlx_prefix}/share/cmake/MLX)
  install(DIRECTORY ${_mlx_source}/include/mlx DESTINATION ${_mlx_prefix}/include)
  install(DIRECTORY ${_mlx_source}/include/metal_cpp DESTINATION ${_mlx_prefix}/include OPTIONAL)
  file(GLOB _mlx_private_libs ${_mlx_source}/../mlx_*.libs)
  install(DIRECTORY ${_mlx_private_libs} DESTINATION ${CMAKE_INSTALL_LIBDIR}/memoir)
  file(GLOB _mlx_licenses ${_mlx_source}/../mlx[-_]*.dist-info/licenses/LICENSE)
  if(_mlx_licenses)
    list(GET _mlx_licenses 0 _mlx_license)
    install(FILES ${_mlx_license} DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME LICENSE.mlx)
  endif()
endif()
