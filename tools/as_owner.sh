#!/bin/bash
# Runs a command as the user behind sudo, so that `sudo make test` leaves no file of root in that user's checkout.
# Without sudo, or where the checkout is not that user's, the command runs as it is.
set -euo pipefail

if [ "$(id -u)" = 0 ] && [ "${SUDO_UID:-0}" != 0 ] && [ "$(stat -c %u .)" = "$SUDO_UID" ]; then
  home=$(getent passwd "$SUDO_UID" | cut -d: -f6)
  exec setpriv --reuid "$SUDO_UID" --regid "$SUDO_GID" --init-groups \
    env HOME="$home" USER="$SUDO_USER" LOGNAME="$SUDO_USER" "$@"
fi
exec "$@"
