// libFuzzer target over every parser of src/io: the first byte chooses the format, the rest is the
// file. Errors are fine; crashes, sanitizer reports and messages of several lines are not.
//
//   tests/fuzz/run.sh [seconds]
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "base/check.h"
#include "io/gguf.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace {

// A path whose content is these bytes, for readers that map files.
std::string path_of(std::string_view bytes) {
  static const int fd = memfd_create("fuzz", 0);
  COPPICE_CHECK(fd >= 0 && ftruncate(fd, 0) == 0);
  COPPICE_CHECK_EQ(pwrite(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  return "/proc/self/fd/" + std::to_string(fd);
}

void parse(std::uint8_t format, std::string_view bytes) {
  switch (format % 3) {
    case 0: {
      const coppice::Json value = coppice::parse_json(bytes, "fuzz");
      const coppice::Json again = coppice::parse_json(coppice::write_json(value), "again");
      COPPICE_CHECK(again == value);
      break;
    }
    case 1:
      coppice::SafetensorsFile(path_of(bytes));
      break;
    default: {
      const coppice::GgufFile file(path_of(bytes));
      coppice::read_gguf_vocabulary(file.fields());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    parse(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const coppice::Error& error) {
    for (const char* c = error.what(); *c != '\0'; ++c)
      COPPICE_CHECK(static_cast<unsigned char>(*c) >= 0x20, error.what());
  }
  return 0;
}
