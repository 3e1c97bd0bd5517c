# Every dependency of the library, found once. The reason for each stands in docs/dependencies.md.

# MLX: the wheel in MEMOIR_VENV unless -DMLX_DIR names another one (CUDA, Metal, a build of your own).
cmake_path(ABSOLUTE_PATH MEMOIR_VENV BASE_DIRECTORY ${PROJECT_SOURCE_DIR} NORMALIZE OUTPUT_VARIABLE _memoir_venv)
file(GLOB _memoir_mlx_dirs ${_memoir_venv}/lib/python3*/site-packages/mlx/share/cmake/MLX)
if(MLX_DIR AND NOT EXISTS "${MLX_DIR}/MLXConfig.cmake")
  # find_package would quietly take another one. A wheel of ours that moved (a new python) may be searched anew.
  cmake_path(IS_PREFIX _memoir_venv "${MLX_DIR}" NORMALIZE _memoir_was_ours)
  if(NOT _memoir_was_ours)
    message(FATAL_ERROR "MLX_DIR is ${MLX_DIR}, which has no MLXConfig.cmake")
  endif()
endif()
if(NOT TARGET mlx)
  find_package(MLX 0.32 CONFIG REQUIRED HINTS ${_memoir_mlx_dirs})
  # So that a project that adds memoir as a subdirectory can link it.
  set_target_properties(mlx PROPERTIES IMPORTED_GLOBAL TRUE)
endif()

# OpenBLAS for the CPU of Linux; MLX brings Accelerate on macOS, and a GPU needs none.
set(_memoir_openblas_default OFF)
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  set(_memoir_openblas_default ON)
endif()
option(MEMOIR_OPENBLAS "Link OpenBLAS ahead of libmlx" ${_memoir_openblas_default})
if(MEMOIR_OPENBLAS)
  include(MemoirOpenBLAS)
endif()

find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(HTTPLIB REQUIRED IMPORTED_TARGET cpp-httplib)
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 2.1 REQUIRED)
