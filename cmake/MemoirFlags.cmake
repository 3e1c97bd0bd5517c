# Warnings and sanitizers for memoir's own targets, as one interface target.
add_library(memoir_flags INTERFACE)
target_compile_options(memoir_flags INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor
  # Every operation is rounded as written, also where the processor has a fused multiply-add (every Arm): the same bits
  # on all.
  -ffp-contract=off
  # No path of the build machine in what is installed (__FILE__).
  -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 sees overlapping copies in "text" + std::string(...): https://gcc.gnu.org/bugzilla/show_bug.cgi?id=105651
  target_compile_options(memoir_flags INTERFACE -Wno-restrict)
endif()
if(MEMOIR_WARNINGS_AS_ERRORS)
  target_compile_options(memoir_flags INTERFACE -Werror)
endif()

set(_memoir_sanitizers ${MEMOIR_SANITIZE})
if(MEMOIR_FUZZER)
  # Coverage feedback in the code under test; fuzz/CMakeLists.txt links libFuzzer's main.
  list(APPEND _memoir_sanitizers fuzzer-no-link)
endif()
if(_memoir_sanitizers)
  list(JOIN _memoir_sanitizers "," _memoir_sanitizers)
  target_compile_options(memoir_flags INTERFACE -fsanitize=${_memoir_sanitizers} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  target_link_options(memoir_flags INTERFACE -fsanitize=${_memoir_sanitizers})
endif()
