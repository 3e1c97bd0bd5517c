#!/bin/bash
# tools/arm.sh: the CPU kernels for 64-bit Arm, on a machine that isn't one. Builds them and their tests with Debian's
# cross compiler in build/arm, runs the tests in qemu, and compares the bits of tests/kernel_bits.cpp with those of this
# machine, also on a processor without the instructions for products of bytes. On an Arm machine `make test` does that.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "arm: $*" >&2; }

case $(uname -m) in
  aarch64 | arm64)
    say "this is an Arm machine: make test runs its kernels"
    exit 2
    ;;
esac

# Two runs at once take turns, where the system has flock.
if command -v flock >/dev/null; then
  exec 9<tools/arm.sh
  flock 9
fi

# build DIR TARGET [cmake OPTION...]: the project of tests/arm, or one target of it.
build() {
  local dir=$1 target=$2
  shift 2
  # Anew, since a build folder that came along when the checkout was moved names the old place.
  cmake --fresh -S tests/arm -B "$dir" -G Ninja -DCMAKE_BUILD_TYPE=Release --log-level=NOTICE "$@"
  cmake --build "$dir" --target "$target"
}

say "building, which takes some minutes the first time"
build build/arm all --toolchain "$PWD/cmake/aarch64-linux-gnu.cmake"
build build/arm-host kernel_bits
ctest --test-dir build/arm --output-on-failure --no-tests=error

# kernel_bits CPU: its lines on this processor of Arm's.
arm_bits() { QEMU_CPU=$1 qemu-aarch64 -L /usr/aarch64-linux-gnu build/arm/bin/kernel_bits; }

say "comparing bits with this machine's"
build/arm-host/bin/kernel_bits >build/arm-host/bits.txt
for cpu in max cortex-a53; do
  arm_bits $cpu >build/arm/bits.txt
  diff build/arm-host/bits.txt build/arm/bits.txt
  say "$cpu: the same bits in $(wc -l <build/arm/bits.txt) cases"
done
