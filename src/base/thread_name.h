// What `top -H`, debuggers and /proc call a thread.
#pragma once

#include <pthread.h>

namespace coppice {

// Names the calling thread; at most 15 characters.
inline void set_thread_name(const char* name) {
  pthread_setname_np(pthread_self(), name);
}

}  // namespace coppice
