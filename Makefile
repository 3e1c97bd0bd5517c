# `make run` and `make test` set up what is missing, build, and go. `make help` lists the rest.
PREFIX ?= /usr/local
CLANG_FORMAT ?= clang-format-14
# What `make run` asks where there is no terminal to chat in.
PROMPT := Why is the sky blue? Answer in one sentence.

sources = $(shell find memoir tests benches examples fuzz -name '*.h' -o -name '*.cpp')
as_owner = tools/as_owner.sh

PEERS_OPTIONS ?=

.PHONY: help setup build run test asan tsan arm peers cuda install format format-check clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## install what is missing: packages, MLX in .venv, the model in models/, clients for tests
	@tools/setup.sh

build: setup ## build/release
	@$(as_owner) tools/build.sh release >&2

run: setup ## chat with SmolLM2; without a terminal, answer one fixed prompt
	@$(as_owner) tools/build.sh release memoir_cli >&2
	@if [ -t 0 ]; then \
	  exec $(as_owner) build/release/bin/memoir chat; \
	else \
	  exec $(as_owner) build/release/bin/memoir generate -m smollm2 -p '$(PROMPT)' -n 64 --temp 0; \
	fi

test: build ## every test
	@$(as_owner) ctest --preset release

asan: setup ## the tests without MLX, under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(as_owner) tools/build.sh asan >&2
	@$(as_owner) ctest --preset asan

tsan: setup ## the tests without MLX, under ThreadSanitizer
	@$(as_owner) tools/build.sh tsan >&2
	@$(as_owner) ctest --preset tsan

arm: ## on another machine than an Arm one: the kernels' tests for Arm in qemu, and their bits beside this machine's
	@tools/setup.sh arm
	@$(as_owner) tools/arm.sh

peers: build ## compare speed and memory with llama.cpp and mlx-lm (installs both in .venv-peers: minutes)
	@tools/setup.sh peers
	@$(as_owner) benches/compare_peers.py $(PEERS_OPTIONS)

cuda: ## build/cuda: configures and links against MLX for CUDA 13, also where there is no GPU
	@tools/setup.sh cuda
	@$(as_owner) tools/build.sh cuda

install: build ## to $(DESTDIR)$(PREFIX), MLX included
	@rm -f build/release/install_manifest.txt
	@DESTDIR="$(DESTDIR)" cmake --install build/release --prefix "$(PREFIX)"

format: ## rewrite the sources as .clang-format says
	@tools/setup.sh dev
	@$(as_owner) $(CLANG_FORMAT) -i $(sources)

format-check: ## fail where a source is not formatted, or shellcheck finds fault with a script
	@tools/setup.sh dev
	@$(CLANG_FORMAT) --dry-run --Werror $(sources)
	@shellcheck tools/*.sh tools/versions.env .ci/run

clean: ## remove build/ (not .venv, not models/)
	@rm -rf build
