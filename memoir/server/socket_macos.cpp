#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "memoir/server/socket.h"

namespace memoir::server {

void set_keep_alive_idle(int fd, int seconds) {
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPALIVE, &seconds, sizeof(seconds));
}

}  // namespace memoir::server
