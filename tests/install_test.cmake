# Installs BUILD_DIR, moves the tree, and uses it as others would: finds no path of the build in it, runs bin/memoir,
# builds examples/find_package and install_consumer against it and runs both. Run by ctest, which sets SOURCE_DIR,
# BUILD_DIR, DIR (scratch), GENERATOR and OPENBLAS.
cmake_minimum_required(VERSION 3.25)

# run(COMMAND...): fails with the command's output unless it succeeds; sets `output`.
macro(run)
  execute_process(COMMAND ${ARGV} OUTPUT_VARIABLE output ERROR_VARIABLE errors RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGV}\nended with ${status}:\n${output}${errors}")
  endif()
endmacro()

file(REMOVE_RECURSE ${DIR})
run(${CMAKE_COMMAND} --install "${BUILD_DIR}" --prefix "${DIR}/first")
file(RENAME ${DIR}/first ${DIR}/moved)
set(prefix ${DIR}/moved)

# Where the tree was made is written nowhere in it: not in CMake files, RPATHs or messages.
# quote(RESULT TEXT): a regular expression for TEXT.
function(quote result text)
  string(REGEX REPLACE "([][+.*()^$?|\\])" "\\\\\\1" quoted "${text}")
  set(${result} "${quoted}" PARENT_SCOPE)
endfunction()

quote(source_dir "${SOURCE_DIR}")
quote(build_dir "${BUILD_DIR}")
file(GLOB_RECURSE files ${prefix}/*)
foreach(file IN LISTS files)
  file(STRINGS ${file} lines REGEX "${source_dir}|${build_dir}")
  if(lines)
    message(FATAL_ERROR "${file} names the build's path:\n${lines}")
  endif()
endforeach()

run(${prefix}/bin/memoir --version)
message(STATUS "${output}")

# build(FOLDER TARGET): configures and builds the project in FOLDER; sets `program`.
macro(build folder target)
  set(binary_dir ${DIR}/build-${target})
  run(${CMAKE_COMMAND} -S ${folder} -B ${binary_dir} -G ${GENERATOR} -D CMAKE_BUILD_TYPE=Release
      -D CMAKE_PREFIX_PATH=${prefix})
  run(${CMAKE_COMMAND} --build ${binary_dir})
  set(program ${binary_dir}/${target})
endmacro()

# What a header includes of memoir is installed, what is internal to a folder isn't.
file(GLOB_RECURSE headers RELATIVE ${prefix}/include ${prefix}/include/memoir/*.h)
foreach(header IN LISTS headers)
  if(header MATCHES "jinja_|_impl\\.h$|/simd_|/cli/")
    message(FATAL_ERROR "${header} is internal")
  endif()
  file(STRINGS ${prefix}/include/${header} lines REGEX "^#include \"")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^#include \"(.*)\".*" "\\1" included "${line}")
    if(NOT EXISTS ${prefix}/include/${included})
      message(FATAL_ERROR "${header} includes ${included}, which is not installed")
    endif()
  endforeach()
endforeach()

# The program that the README shows is the example.
file(READ ${SOURCE_DIR}/README.md readme)
file(READ ${SOURCE_DIR}/examples/find_package/main.cpp program_text)
string(FIND "${readme}" "```cpp\n${program_text}```" found)
if(found EQUAL -1)
  message(FATAL_ERROR "README.md shows another program than examples/find_package/main.cpp")
endif()
build(${SOURCE_DIR}/examples/find_package example)
run(${program} ${SOURCE_DIR}/models/smollm2.gguf "The capital of France is")
if(NOT output MATCHES "Paris")
  message(FATAL_ERROR "the example prints:\n${output}")
endif()

build(${SOURCE_DIR}/tests/install_consumer consumer)
run(${program})
if(OPENBLAS)
  # Each library comes from the moved tree, none from the build; MLX's products end in OpenBLAS here too.
  set(libraries libmlx libblas)
  if(NOT EXISTS ${prefix}/lib/libmemoir.a)
    list(APPEND libraries libmemoir)
  endif()
  run(ldd ${program})
  quote(quoted_prefix "${prefix}")
  foreach(library IN LISTS libraries)
    if(NOT output MATCHES "${library}[^ ]* => ${quoted_prefix}/")
      message(FATAL_ERROR "${library} is not the installed one:\n${output}")
    endif()
  endforeach()
  set(PROGRAM ${program})
  include(${CMAKE_CURRENT_LIST_DIR}/blas_bindings.cmake)
endif()
file(REMOVE_RECURSE ${DIR})
