#!/bin/bash
# tools/build.sh PRESET: configures and builds build/PRESET.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1

# Two builds at once take turns, where the system has flock.
if command -v flock >/dev/null; then
  exec 9<tools/build.sh
  flock 9
fi

# A build folder that came along when the checkout was moved or copied names the old place: begin anew.
fresh=()
cache=build/$preset/CMakeCache.txt
if [ -f "$cache" ] && ! [ "$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$cache")" -ef . ]; then
  fresh=(--fresh)
fi
cmake --preset "$preset" --log-level=NOTICE ${fresh[@]+"${fresh[@]}"}
cmake --build --preset "$preset"
