# A library that says where tests find the tree, models and the program that they test. Needs GTest.
function(nibble_test_assets library program)
  add_library(${library} STATIC ${PROJECT_SOURCE_DIR}/tests/assets.cpp)
  target_include_directories(${library} PRIVATE ${NIBBLE_INCLUDE})
  target_compile_definitions(${library} PRIVATE
    NIBBLE_DEFAULT_ASSETS="${PROJECT_SOURCE_DIR}/../shared/assets"
    NIBBLE_PROGRAM="${program}"
    NIBBLE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${library} PRIVATE GTest::gtest)
endfunction()
