target_sources(memoir_core PRIVATE ${CMAKE_CURRENT_LIST_DIR}/config.cpp
                                   ${CMAKE_CURRENT_LIST_DIR}/config_defaults.cpp
                                   ${CMAKE_CURRENT_LIST_DIR}/config_fields.cpp
                                   ${CMAKE_CURRENT_LIST_DIR}/config_gguf.cpp
                                   ${CMAKE_CURRENT_LIST_DIR}/gguf_keys.cpp
                                   ${CMAKE_CURRENT_LIST_DIR}/gguf_names.cpp
                                   ${CMAKE_CURRENT_LIST_DIR}/layer_pattern.cpp
                                   ${CMAKE_CURRENT_LIST_DIR}/modelfile.cpp
                                   ${CMAKE_CURRENT_LIST_DIR}/tensor_names.cpp)
