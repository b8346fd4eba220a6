# xgrammar's C++ core, the engine of structured output, from the source distribution that scripts/setup.sh unpacks.
# Compiled by a target of our own: its CMake files turn on link-time optimisation and warnings as errors. Without the
# sources the build has no grammars and the server says so to requests that need one.
file(STRINGS ${PROJECT_SOURCE_DIR}/scripts/xgrammar-version.txt xgrammar_version LIMIT_COUNT 1)
set(COPPICE_XGRAMMAR_DIR ${PROJECT_SOURCE_DIR}/.deps/xgrammar-${xgrammar_version} CACHE PATH "Sources of xgrammar")
if(EXISTS ${COPPICE_XGRAMMAR_DIR}/include/xgrammar/xgrammar.h)
  file(GLOB xgrammar_sources ${COPPICE_XGRAMMAR_DIR}/cpp/*.cc ${COPPICE_XGRAMMAR_DIR}/cpp/support/*.cc
       ${COPPICE_XGRAMMAR_DIR}/cpp/converter_ext/*.cc)
  add_library(xgrammar STATIC ${xgrammar_sources})
  target_include_directories(xgrammar SYSTEM PUBLIC ${COPPICE_XGRAMMAR_DIR}/include
                             ${COPPICE_XGRAMMAR_DIR}/3rdparty/dlpack/include)
  target_include_directories(xgrammar SYSTEM PRIVATE ${COPPICE_XGRAMMAR_DIR}/3rdparty/picojson)
  target_compile_definitions(xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0
                             XGRAMMAR_LOG_CUSTOMIZE=1)
  target_compile_options(xgrammar PRIVATE -w -march=x86-64-v2)
  if(COPPICE_SANITIZE)
    # Memory and threads are watched here too, for what we hand in; its arithmetic is its own affair.
    string(REPLACE ",undefined" "" xgrammar_sanitize "${COPPICE_SANITIZE}")
    target_compile_options(xgrammar PRIVATE -fsanitize=${xgrammar_sanitize} -g0)
  endif()
  target_link_libraries(xgrammar PUBLIC Threads::Threads)
else()
  message(STATUS "No xgrammar in ${COPPICE_XGRAMMAR_DIR}: the build has no structured output")
endif()
