target_sources(memoir_core PRIVATE ${CMAKE_CURRENT_LIST_DIR}/config.cpp
                                   ${CMAKE_CURRENT_LIST_DIR}/config_fields.cpp
                                   ${CMAKE_CURRENT_LIST_DIR}/config_gguf.cpp)
