option(NIBBLE_UNITY_BUILD "Compile the sources of a folder as one unit, which reads their headers once" ON)

# Makes one unit for the compiler of the sources of each folder, for builds from scratch. Kernels stay apart: each is
# compiled for its own instructions, and those for tiles are replaced by tests.
function(compile_by_folder target)
  if(NOT NIBBLE_UNITY_BUILD)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(file ${ARGN})
    cmake_path(ABSOLUTE_PATH file)
    cmake_path(GET file PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    if(NOT folder MATCHES "^core/ops/cpu" AND NOT file MATCHES "_amx\\.cpp$")
      string(REPLACE "/" "_" group ${folder})
      set_source_files_properties(${file} PROPERTIES UNITY_GROUP ${group})
    endif()
  endforeach()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)  # which sees an included file as a header
  endif()
endfunction()
