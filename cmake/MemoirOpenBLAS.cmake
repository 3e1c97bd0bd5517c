# memoir::openblas: OpenBLAS ahead of libmlx. Used by the build and, installed beside memoirConfig.cmake, by whoever
# links memoir.
#
# MLX's Linux wheel brings a plain reference BLAS (libmlx.so needs it), some 50 times slower than OpenBLAS. The loader
# searches a symbol in the program first, then in the libraries that the program needs, in their order, then in those
# that these need. So cblas_sgemm comes from OpenBLAS where the program itself needs libopenblas, whatever else it
# needs. Hence a link option, not a library: options stand before every library on the link line, whoever wrote the
# line, so that neither its order nor --as-needed can drop OpenBLAS behind the other one.
# tests/blas_test.cpp and tests/install_test.cmake prove it.
if(NOT TARGET memoir::openblas)
  find_library(MEMOIR_OPENBLAS_LIBRARY openblas REQUIRED)
  mark_as_advanced(MEMOIR_OPENBLAS_LIBRARY)
  add_library(memoir::openblas INTERFACE IMPORTED GLOBAL)
  target_link_options(memoir::openblas INTERFACE
    "SHELL:-Wl,--push-state,--no-as-needed \"${MEMOIR_OPENBLAS_LIBRARY}\" -Wl,--pop-state")
endif()
