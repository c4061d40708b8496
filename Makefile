# NacreFS: `make run` tries it, `make test` tests it, `make install` installs it.

PREFIX ?= /usr/local
DESTDIR ?=
# Where `make run` keeps its file system.
DATA ?= nacre-data
CARGO ?= cargo
BUILD ?= target/release

.PHONY: help run stop build preload test lint deny install uninstall deb rpm clean

help:
	@echo "make run        build, start a file system in ./$(DATA), mount it, show a striped file"
	@echo "make stop       unmount and stop it"
	@echo "make test       all tests"
	@echo "make lint       formatting, clippy, checks of the tree, spelling"
	@echo "make build      build what 'make install' installs"
	@echo "make install    install what was built under PREFIX ($(PREFIX)): programs, manual pages, completions, nacre@.service"
	@echo "make deb        build, and make a package for Debian and Ubuntu in target/packages"
	@echo "make rpm        build, and make a package for Fedora, RHEL and openSUSE in target/packages"

build:
	@scripts/install-deps
	$(CARGO) build --release --bin nacre --bin nacre-bench
	$(CARGO) build --release -p nacre-preload

# What programs made for Lustre are run with: docs/operations/lustre-programs.md.
preload:
	@scripts/install-deps
	$(CARGO) build --release -p nacre-preload

run: build
	@BUILD=$(BUILD) scripts/run $(DATA)

stop:
	@$(BUILD)/nacre down $(DATA)

test:
	@scripts/test

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) run --quiet -p xtask -- all
	@scripts/typos
	@scripts/deny

deny:
	@scripts/deny

# Builds nothing, so that root can do it without Rust: `make build && sudo make install`.
install:
	@BUILD='$(BUILD)' PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install

uninstall:
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/uninstall

deb: build
	@BUILD='$(BUILD)' scripts/package deb

rpm: build
	@BUILD='$(BUILD)' scripts/package rpm

clean:
	$(CARGO) clean
