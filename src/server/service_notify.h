// Tells systemd how the service does (sd_notify's protocol): without NOTIFY_SOCKET, nothing.
#pragma once

#include <string_view>

namespace coppice {

// "READY=1", "STOPPING=1", "WATCHDOG=1", "STATUS=text"; several lines at once are fine.
void service_notify(std::string_view state);

// Half of the watchdog's interval in milliseconds, or 0 when systemd asks for none.
long watchdog_interval_ms();

}  // namespace coppice
