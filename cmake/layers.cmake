# coppice_layer(NAME PATH deps...): one static library per row of the layer table (docs/architecture.md). Sources are
# all .cpp files of the folder itself, not of its subfolders. Files named *_avx2.cpp and *_avx512.cpp get their
# instruction set; only run-time dispatch may call into them. Sanitizers spend most of the tests' time in them: optimised
# in full there, and without ThreadSanitizer, which is told what each call reads and writes (backend/cpu/simd/watched.h).
function(coppice_layer name path)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${path}/*.cpp)
  # Chosen by what the build has: see src/CMakeLists.txt.
  list(FILTER sources EXCLUDE REGEX "/(no_cuda|grammar|no_grammar)\\.cpp$")
  coppice_layer_sources(${name} "${sources}" ${ARGN})
endfunction()

function(coppice_layer_sources name sources)
  set(deps ${ARGN})
  list(TRANSFORM deps PREPEND coppice_)
  if(sources)
    add_library(coppice_${name} STATIC ${sources})
    target_link_libraries(coppice_${name} PUBLIC coppice_flags ${deps})
  else()
    add_library(coppice_${name} INTERFACE)
    target_link_libraries(coppice_${name} INTERFACE coppice_flags ${deps})
  endif()
  set(simd_options -mavx2 -mfma -mf16c)
  if(COPPICE_SANITIZE)
    list(APPEND simd_options -O2)
  endif()
  if(COPPICE_SANITIZE MATCHES "thread")
    list(APPEND simd_options -fno-sanitize=thread)
  endif()
  foreach(source ${sources})
    if(source MATCHES "_avx2\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${simd_options}")
    elseif(source MATCHES "_avx512\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
        "${simd_options};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512vnni;-mavx512bf16")
    endif()
  endforeach()
endfunction()
