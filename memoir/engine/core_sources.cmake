# The MLX-free part of the engine. Include it after memoir_core is made.
target_sources(memoir_core PRIVATE ${CMAKE_CURRENT_LIST_DIR}/sampler.cpp ${CMAKE_CURRENT_LIST_DIR}/stop.cpp
                                   ${CMAKE_CURRENT_LIST_DIR}/draft_length.cpp ${CMAKE_CURRENT_LIST_DIR}/speculate.cpp)

# The same seed must give the same token everywhere: no fused multiply-add where the target happens to have one.
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/sampler.cpp TARGET_DIRECTORY memoir_core
                            PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
