# As a script: cmake -DFOLDER=... -DFILES="a;b" -DOUTPUT=x.cpp -P embed_files.cmake writes the page's files into a C++ source
# (web_files() of server/web_page.h). Included: coppice_embed_web(TARGET FOLDER) has the build do so.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  function(coppice_embed_web target folder)
    file(GLOB files CONFIGURE_DEPENDS ${folder}/*.html ${folder}/*.css ${folder}/*.js)
    set(output ${CMAKE_CURRENT_BINARY_DIR}/web_files.cpp)
    add_custom_command(
      OUTPUT ${output}
      COMMAND ${CMAKE_COMMAND} "-DFILES=${files}" -DOUTPUT=${output} -P ${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake
      DEPENDS ${files} ${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake
      COMMENT "Embedding the page" VERBATIM)
    target_sources(${target} PRIVATE ${output})
  endfunction()
  return()
endif()

set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(arrays "")
set(entries "")
set(index 0)
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  string(REGEX REPLACE ".*\\." "" kind ${name})
  set(path "/web/${name}")
  if(name STREQUAL "index.html")
    set(path "/")
  endif()
  file(READ ${file} bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
  string(REGEX REPLACE "(......,......,......,......,......,......,......,......,......,......,)" "\\1\n" bytes "${bytes}")
  string(APPEND arrays "constexpr char kFile${index}[] = {\n${bytes}};\n")
  string(APPEND entries "    {\"${path}\", \"${type_${kind}}\", {kFile${index}, sizeof kFile${index}}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE ${OUTPUT} "// Made by cmake/embed_files.cmake.
#include \"server/web_page.h\"

namespace coppice {
namespace {
${arrays}
constexpr WebFile kFiles[] = {
${entries}};
}  // namespace

std::span<const WebFile> web_files() {
  return kFiles;
}

}  // namespace coppice
")
