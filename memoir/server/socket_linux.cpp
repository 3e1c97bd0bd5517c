#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "memoir/server/socket.h"

namespace memoir::server {

void set_keep_alive_idle(int fd, int seconds) {
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds));
}

}  // namespace memoir::server
