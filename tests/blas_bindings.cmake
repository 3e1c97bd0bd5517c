# Checks that PROGRAM's libmlx calls cblas_sgemm of OpenBLAS: the loader reports each symbol as it binds it, at the first
# call. Run: cmake -D PROGRAM=<one that multiplies matrices with MLX> -P blas_bindings.cmake
cmake_minimum_required(VERSION 3.25)

cmake_path(GET PROGRAM FILENAME name)
set(log ${CMAKE_CURRENT_BINARY_DIR}/${name}.bindings)
file(GLOB old ${log}.*)
foreach(one IN LISTS old)
  file(REMOVE ${one})
endforeach()
execute_process(COMMAND ${CMAKE_COMMAND} -E env LD_DEBUG=bindings LD_DEBUG_OUTPUT=${log} ${PROGRAM}
                OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} failed:\n${output}")
endif()

file(GLOB logs ${log}.*)  # one for each process
set(bindings "")
foreach(one IN LISTS logs)
  file(STRINGS ${one} lines REGEX "binding file .*libmlx[^/]* to .*symbol .cblas_sgemm'")
  list(APPEND bindings ${lines})
  file(REMOVE ${one})
endforeach()
if(NOT bindings MATCHES "libmlx[^/]* to [^ ]*/libopenblas")
  message(FATAL_ERROR "${PROGRAM}: libmlx's cblas_sgemm is not OpenBLAS's, but: '${bindings}'")
endif()
message(STATUS "${bindings}")
