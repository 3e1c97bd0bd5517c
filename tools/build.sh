#!/bin/bash
# tools/build.sh PRESET [TARGET...]: configures and builds build/PRESET, or only the targets. With targets it is quiet
# unless it fails.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift

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

configure() { cmake --preset "$preset" --log-level=NOTICE ${fresh[@]+"${fresh[@]}"}; }

if [ $# = 0 ]; then
  configure
  cmake --build --preset "$preset"
  exit
fi

mkdir -p "build/$preset"
log=build/$preset/quiet-build.log
[ -e "build/$preset/bin/memoir" ] || echo "build: building $*, which takes some minutes the first time" >&2
if ! { configure && cmake --build --preset "$preset" --target "$@"; } >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
