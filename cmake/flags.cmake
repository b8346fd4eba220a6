# Flags every Coppice target shares.
add_library(coppice_flags INTERFACE)
target_compile_options(coppice_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror
    # Designated initialisers leave out members on purpose.
    -Wno-missing-field-initializers>
  # Results must not depend on which multiply-adds a compiler chose to fuse: SIMD files fuse explicitly.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off -march=x86-64-v2 -fno-omit-frame-pointer>)
target_include_directories(coppice_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
if(COPPICE_SANITIZE)
  target_compile_options(coppice_flags INTERFACE -fsanitize=${COPPICE_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(coppice_flags INTERFACE -fsanitize=${COPPICE_SANITIZE})
  # Indexes past the end of a vector, span or array that stay within its memory.
  target_compile_definitions(coppice_flags INTERFACE _GLIBCXX_ASSERTIONS)
  if(COPPICE_SANITIZE MATCHES "thread")
    # ThreadSanitizer does not model the fences Asio uses; every includer must agree on them.
    target_compile_definitions(coppice_flags INTERFACE BOOST_ASIO_DISABLE_STD_FENCE
      BOOST_ASIO_DISABLE_FENCED_BLOCK)
  endif()
else()
  # The binary needs glibc and libstdc++ only.
  target_link_options(coppice_flags INTERFACE -static-libgcc)
endif()
